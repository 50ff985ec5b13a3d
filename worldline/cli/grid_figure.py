"""Grid figure: the cells as coloured squares, each with its decision and its gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from worldline.cli.fabric import Fabric
from worldline.cli.figures import new_figure
from worldline.cli.grid import Cell, Choice, Demand
from worldline.cli.output import human_bytes
from worldline.cli.quantities import human_ms, human_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {Choice.MIGRATE: "#a8d5ac", Choice.PREWARM: "#f5dfa0", Choice.REJECT: "#e8b4a8"}
_CELL_INCHES = (1.5, 0.7)
_MARGIN_INCHES = (2.4, 1.4)


def draw_grid(
    fabrics: Sequence[Fabric], rows: Sequence[Sequence[Cell]], demand: Demand, option: str
) -> Figure:
    """The first fabric on top, the first horizon on the left.

    Raises:
        Conflict: matplotlib is not installed.
    """
    across, down = len(rows[0]), len(rows)
    figure = new_figure(
        (
            _MARGIN_INCHES[0] + across * _CELL_INCHES[0],
            _MARGIN_INCHES[1] + down * _CELL_INCHES[1],
        ),
        option,
    )
    axes = figure.add_subplot()
    axes.set(xlim=(0, across), ylim=(down, 0))
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            axes.fill_between(
                (column, column + 1), row, row + 1, color=_COLOURS[cell.choice], ec="white"
            )
            axes.text(column + 0.5, row + 0.5, _text(cell), ha="center", va="center", fontsize=9)
    axes.set_xticks(
        [column + 0.5 for column in range(across)], [human_ms(c.horizon_ms) for c in rows[0]]
    )
    axes.set_yticks([row + 0.5 for row in range(down)])
    # Not through set_yticks: only so are dollar signs in a user's names not read as formulas.
    axes.set_yticklabels([_name(fabric) for fabric in fabrics], parse_math=False)
    axes.set_xlabel("SLO: horizon H")
    axes.set_ylabel("fabric")
    axes.set_title(
        f"S = {human_bytes(demand.state_bytes)}, "
        f"D = {human_bytes(demand.dirty_rate_bytes_per_s)}/s, {demand.at_once} at once"
    )
    axes.tick_params(length=0)
    return figure


def _text(cell: Cell) -> str:
    gate = human_rate(cell.numbers["required_rate_bytes_per_s"])
    return f"{cell.choice.value}\nneeds {gate}"


def _name(fabric: Fabric) -> str:
    return f"{fabric.name}\n{human_rate(fabric.rate_bytes_per_s)}"
