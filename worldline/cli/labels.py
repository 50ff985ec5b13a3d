"""Labels: where names stand beside their points so that each can be read.

Text is measured roughly, by its characters: exact sizes would need the font that an SVG's reader
has. All lengths are in points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

FONT_POINTS = 9
_CHARACTER_POINTS = 0.58 * FONT_POINTS
_LINE_POINTS = 1.3 * FONT_POINTS
_MARKER_POINTS = 5.0
_RINGS = 4

_Align = Literal["left", "center", "right"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that something stands in."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a label goes: the offset of its lower edge from its point, and how it is aligned."""

    right: float
    up: float
    align: _Align


def spots(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    size: tuple[float, float],
    taken: Sequence[Box] = (),
) -> list[Spot]:
    """A spot for each text beside its point, on a sheet of that size, clear of what is taken.

    In order: the first come, first served. Where nothing is free a label stands above its point.
    """
    occupied = [*taken, *(marker(point) for point in points)]
    sheet = Box(0, 0, *size)
    chosen = []
    for point, text in zip(points, texts, strict=True):
        tried = list(_spots())
        free = (spot for spot in tried if _is_free(label_box(point, text, spot), sheet, occupied))
        spot = next(free, tried[0])
        occupied.append(label_box(point, text, spot))
        chosen.append(spot)
    return chosen


def label_box(point: tuple[float, float], text: str, spot: Spot) -> Box:
    """What the label at `spot` covers."""
    width = len(text) * _CHARACTER_POINTS
    shift = {"left": 0.0, "center": width / 2, "right": width}[spot.align]
    left, bottom = point[0] + spot.right - shift, point[1] + spot.up
    return Box(left, bottom, left + width, bottom + _LINE_POINTS)


def marker(point: tuple[float, float]) -> Box:
    """What the point itself covers."""
    x, y = point
    half = _MARKER_POINTS
    return Box(x - half, y - half, x + half, y + half)


def _spots() -> Iterator[Spot]:
    """Nearest first: above, below, beside, and again one line further up and down."""
    beside = 1.5 * _MARKER_POINTS
    aligned: tuple[_Align, ...] = ("center", "left", "right")
    for ring in range(_RINGS):
        for align in aligned:
            yield Spot(0.0, beside + ring * _LINE_POINTS, align)
            yield Spot(0.0, -beside - (ring + 1) * _LINE_POINTS, align)
        yield Spot(beside, (ring - 0.5) * _LINE_POINTS, "left")
        yield Spot(-beside, (ring - 0.5) * _LINE_POINTS, "right")


def _is_free(box: Box, sheet: Box, occupied: Sequence[Box]) -> bool:
    inside = (
        box.left >= sheet.left
        and box.right <= sheet.right
        and box.bottom >= sheet.bottom
        and box.top <= sheet.top
    )
    return inside and not any(box.meets(each) for each in occupied)
