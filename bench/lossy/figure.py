"""Figure: divergence of every handle at every block, as a map; what is identical stays white."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.lossy.row import Row
from worldline.cli.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_INCHES = 8.5
_ROW_INCHES = 0.24
_FRAME_INCHES = 1.1


def draw_divergence(rows: Sequence[Row], option: str) -> Figure:
    """One line a handle, the next block on the left.

    Raises:
        Conflict: matplotlib is not installed.
    """
    figure = new_figure((_WIDTH_INCHES, _FRAME_INCHES + _ROW_INCHES * len(rows)), option)
    axes = figure.subplots()
    blocks = len(rows[0].divergence_db)
    # An identical block is no small divergence: it is left out and shows the white behind.
    cells = [[value or float("nan") for value in row.divergence_db] for row in rows]
    mesh = axes.pcolormesh(cells, cmap="YlOrRd", vmin=0.0, edgecolors="white", linewidth=0.4)
    axes.set_yticks([number + 0.5 for number in range(len(rows))], [_label(row) for row in rows])
    axes.set_xticks([number + 0.5 for number in range(blocks)], [str(n + 1) for n in range(blocks)])
    axes.tick_params(length=0, labelsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("block after the state was approximated")
    figure.colorbar(mesh, ax=axes, label="divergence from the exact twin, dB; white: the same bits")
    return figure


def _label(row: Row) -> str:
    return f"{row.family}: {row.name} ({row.saved_share:.0%})"
