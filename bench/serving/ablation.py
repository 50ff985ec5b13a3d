"""Ablation: the same workload with one rule less. A rule that changes nothing has no place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.serving.cell import Cell
from bench.serving.policies.table import Arm
from bench.serving.policies.worldline import Worldline
from bench.serving.session import Grid
from bench.serving.trials import Say, Trials, trials
from services.engine.schedule.grid import Release, ReleaseGrid

ALL_RULES = "all rules"


@dataclass(frozen=True, slots=True)
class QueueingGrid:
    """A grid without the depth of 1: a point that passed releases its block all the same, late."""

    period_s: float
    anchor_at: float | None = None
    index: int = -1

    def finished(self, at: float, *, warm: bool = True) -> Grid:
        """As `ReleaseGrid`: it opens after the first block."""
        return replace(self, anchor_at=at) if self.anchor_at is None else self

    def release(self, asked_at: float) -> tuple[Grid, Release]:
        """The next point, whenever it was."""
        if self.anchor_at is None:
            return self, Release(asked_at, float("inf"))
        index = self.index + 1
        at = self.anchor_at + index * self.period_s
        return replace(self, index=index), Release(at, at + self.period_s)


def _from_the_start(period_s: float) -> Grid:
    return ReleaseGrid(period_s).opened(0.0)


def _queueing_from_the_start(period_s: float) -> Grid:
    return QueueingGrid(period_s, 0.0)


ABLATIONS = (
    Arm(ALL_RULES, Worldline),
    Arm("no guard band", lambda: Worldline(guarded=False)),
    Arm("no ladder", lambda: Worldline(quality_knob=False)),
    Arm("no warm anchor", Worldline, _from_the_start),
    Arm("no skip", Worldline, QueueingGrid),
    Arm("no skip, no warm anchor", Worldline, _queueing_from_the_start),
    Arm(
        "no skip, no warm anchor, no ladder",
        lambda: Worldline(quality_knob=False),
        _queueing_from_the_start,
    ),
)


def ablation(base: Cell, seeds: Sequence[int], say: Say) -> list[Trials]:
    """Table 4's cell with a bulk job that never ends, so that bulk is there all the time."""
    cell = replace(base, bulk_blocks=None)
    return [trials(cell, arm, seeds, say) for arm in ABLATIONS]
