"""Strip: labelled frames side by side in one PNG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from worldline.errors import InvalidInput

_HEIGHT_PX_MIN = 144
_LABEL_PX = 26
_GAP_PX = 6
_COLUMNS_MAX = 8
_BACKGROUND = (18, 18, 22)
_TEXT = (230, 230, 235)


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """One frame, uint8 RGB [height, width, 3], and what is written above it."""

    label: str
    frame: npt.NDArray[np.uint8]


def write_strip(path: Path, frames: Sequence[Labelled], columns: int = _COLUMNS_MAX) -> None:
    """Write the frames in rows of at most `columns`; small ones are enlarged without smoothing.

    Raises:
        InvalidInput: there are none, or they differ in size; `field` is `frames`.
    """
    if not frames:
        raise InvalidInput("there are no frames to write", field="frames")
    if len({each.frame.shape for each in frames}) != 1:
        raise InvalidInput("frames differ in size", field="frames")
    height, width, _ = frames[0].frame.shape
    scale = max(1, -(-_HEIGHT_PX_MIN // height))
    cell_width = width * scale + _GAP_PX
    cell_height = height * scale + _LABEL_PX + _GAP_PX
    across = min(columns, len(frames))
    rows = -(-len(frames) // across)
    strip = Image.new("RGB", (cell_width * across + _GAP_PX, cell_height * rows), _BACKGROUND)
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default(size=13)
    for position, each in enumerate(frames):
        left = _GAP_PX + position % across * cell_width
        top = position // across * cell_height
        draw.text((left, top + 6), each.label, fill=_TEXT, font=font)
        picture = Image.fromarray(each.frame).resize(
            (width * scale, height * scale), Image.Resampling.NEAREST
        )
        strip.paste(picture, (left, top + _LABEL_PX))
    path.parent.mkdir(parents=True, exist_ok=True)
    strip.save(path, format="PNG")


def check_writable(path: Path, field: str) -> None:
    """Before the work that would be lost: can a file be written at `path`?

    Raises:
        InvalidInput: it is a directory, or its directory is missing or not writable.
    """
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory; name a file in it", field=field)
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no directory {path.parent} to write in", field=field)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"{path} cannot be written", field=field)
