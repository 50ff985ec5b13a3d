"""Heat figure: a slot over successive blocks, and the windows of its caches, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from worldline.cli.figures import new_figure
from worldline.cli.output import human_bytes
from worldline.state.inspection import GroupReport, Inspection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Across the slot; finer than the figure's pixels would show nothing more.
_CELLS = 800
_COLOURS = "inferno"
_WIDTH_INCHES = 10.0
_STEP_INCHES = 0.28
_GROUP_INCHES = 0.28
_MARGIN_INCHES = 1.6
#: Steps that are drawn at full height; more of them share it.
_STEPS_MAX = 24


def draw_heat(inspection: Inspection, title: str, option: str) -> Figure:
    """Above: which bytes of the slot each block changed. Below: which parts of the windows.

    Raises:
        Conflict: matplotlib is not installed.
    """
    windows = [each for each in inspection.groups if each.position_heat is not None]
    steps = min(len(inspection.steps), _STEPS_MAX)
    heights = [steps * _STEP_INCHES + 0.6]
    if windows:
        heights.append(len(windows) * _GROUP_INCHES + 0.6)
    figure = new_figure((_WIDTH_INCHES, sum(heights) + _MARGIN_INCHES), option)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    figure.suptitle(title)
    _draw_slot(axes[0], inspection)
    if windows:
        _draw_windows(axes[1], windows)
    return figure


def _draw_slot(axes: Axes, inspection: Inspection) -> None:
    from matplotlib.ticker import MaxNLocator  # an extra, which `new_figure` has asked for

    extent_mb = inspection.trace.segments.extent_bytes / 1e6
    first, last = inspection.steps[0].block_index, inspection.trace.last_block
    image = axes.imshow(
        inspection.trace.heat_by_step(_CELLS),
        aspect="auto",
        interpolation="nearest",
        cmap=_COLOURS,
        vmin=0,
        vmax=1,
        extent=(0, extent_mb, last + 0.5, first - 0.5),
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("offset in the slot (MB)")
    axes.set_ylabel("block")
    axes.set_title(
        f"dirty {inspection.dirty_fraction:.3f} of {human_bytes(inspection.state_bytes)}, "
        f"D = {human_bytes(inspection.dirty_rate_bytes_per_s)}/s: "
        f"{inspection.classification.rule}"
    )
    axes.figure.colorbar(image, ax=axes, label="share changed")


def _draw_windows(axes: Axes, windows: list[GroupReport]) -> None:
    """Windows of any number of positions over one width, from the oldest position to the newest."""
    rows = []
    for each in windows:
        heat = np.asarray(each.position_heat)
        rows.append(heat[np.arange(_CELLS) * len(heat) // _CELLS])
    axes.imshow(
        np.array(rows),
        aspect="auto",
        interpolation="nearest",
        cmap=_COLOURS,
        vmin=0,
        vmax=1,
        extent=(0, 1, len(rows) - 0.5, -0.5),
    )
    axes.set_yticks(range(len(windows)), [each.pattern for each in windows])
    axes.set_xlabel("position along the window (dimension 1)")
