"""Figure: what becomes of 72 offers under every policy, one panel a load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.fabric.tally import Row
from worldline.cli.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = (
    ("on_time", "on time", "#3b7d4f"),
    ("missed", "missed", "#c8553d"),
    ("rejected", "rejected", "#c9c9d1"),
    ("rejected_later", "rejected later", "#8f8f9d"),
)
_PANEL_INCHES = 3.0
_HEIGHT_INCHES = 3.2


def draw_outcomes(rows: Sequence[Row], option: str) -> Figure:
    """Stacked bars.

    Raises:
        Conflict: matplotlib is not installed.
    """
    loads = sorted({row.load for row in rows})
    figure = new_figure((2.0 + _PANEL_INCHES * len(loads), _HEIGHT_INCHES), option)
    panels = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
    for axes, load in zip(panels, loads, strict=True):
        _draw_panel(axes, [row for row in rows if row.load == load], f"{load:g}x")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(_PARTS), frameon=False)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], title: str) -> None:
    names = [row.policy for row in rows]
    ends = [0.0] * len(rows)
    for attribute, label, colour in _PARTS:
        widths = [float(getattr(row, attribute)) for row in rows]
        axes.barh(names, widths, left=ends, color=colour, label=label)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.set_title(title)
    axes.set_xlabel("offered moves")
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
