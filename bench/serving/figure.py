"""Figure: Table 4 and the rungs, the paper's figures beside the simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.serving.rungs import PAPER_KNOB_PER_S, PAPER_NO_KNOB_PER_S, PAPER_PAYOFFS, Rung
from bench.serving.table4 import PAPER
from bench.serving.trials import Trials
from worldline.cli.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_INCHES = (11.0, 3.6)
_OURS, _PAPER, _WITHOUT = "#3b7d4f", "#c9c9d1", "#c8553d"
_BAR = 0.38


def draw(rows: Sequence[Trials], rungs: Sequence[Rung], option: str) -> Figure:
    """Three panels: misses, bulk, rungs.

    Raises:
        Conflict: matplotlib is not installed.
    """
    figure = new_figure(_SIZE_INCHES, option)
    misses, bulk, knob = figure.subplots(1, 3, width_ratios=(1, 1, 1.5))
    known = [row for row in rows if row.arm in PAPER]
    _bars(
        misses,
        known,
        [100 * row.mean("missed_share") for row in known],
        [PAPER[row.arm].missed_percent for row in known],
        "interactive blocks missed, %",
    )
    _bars(
        bulk,
        known,
        [row.mean("bulk_blocks") for row in known],
        [PAPER[row.arm].bulk_blocks for row in known],
        "bulk blocks per cell",
    )
    bulk.set_yticklabels([])
    misses.legend(frameon=False)
    _draw_rungs(knob, rungs)
    return figure


def _bars(
    axes: Axes, rows: Sequence[Trials], ours: Sequence[float], paper: Sequence[float], label: str
) -> None:
    places = range(len(rows))
    axes.barh([at - _BAR / 2 for at in places], ours, _BAR, color=_OURS, label="simulated")
    axes.barh([at + _BAR / 2 for at in places], paper, _BAR, color=_PAPER, label="paper")
    axes.set_yticks(list(places), [row.arm for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.locator_params(axis="x", nbins=4)


def _draw_rungs(axes: Axes, rungs: Sequence[Rung]) -> None:
    periods = [rung.period_s * 1e3 for rung in rungs]
    knob = [rung.knob.mean("bulk_per_device_s") for rung in rungs]
    without = [rung.no_knob.mean("bulk_per_device_s") for rung in rungs]
    axes.plot(periods, knob, "o-", color=_OURS, label="with the quality knob")
    axes.plot(periods, without, "o-", color=_WITHOUT, label="without")
    axes.plot(
        [periods[0]] * 2,
        [PAPER_KNOB_PER_S, PAPER_NO_KNOB_PER_S],
        "s",
        color="black",
        markerfacecolor="none",
        markersize=9,
        linestyle="none",
        label="paper",
    )
    for rung, paper, top in zip(rungs[1:], PAPER_PAYOFFS, knob[1:], strict=True):
        axes.annotate(
            f"{rung.payoff:.2f}x\npaper {paper:.2f}x",
            (rung.period_s * 1e3, top),
            xytext=(-5, 5),
            textcoords="offset points",
            ha="right",
        )
    axes.set_ylim(-0.08, max(knob) * 1.2)
    axes.set_xticks(periods)
    axes.set_xlabel("release period, ms")
    axes.set_ylabel("bulk blocks/s on each device")
    axes.legend(frameon=False, loc="lower right")
