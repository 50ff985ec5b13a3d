"""Pace: when the blocks of one world are released and due, and what became of that.

Four words. A *miss* is a block that was done after its deadline. A *skip* is a release that passed
without a block because the world was not ready for one: its last block was late, or it stood
still for a move that did not commit. A release that passes because the client asked for nothing is
neither. A *degraded* block has fewer denoising steps than the model's full quality.

A world with a period has a release grid (`schedule.grid`). It is closed until the first block here
is over, wherever "here" is: after an open, a fork, a resume or a move. So what a first block costs
once is no miss, and a move is charged to its own record and not to the blocks that follow it. A
skip moves the next action's block to a later release; it never takes the action away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from services.engine.schedule import Firm, QualityHistory, Release, ReleaseGrid, transient_over
from worldline.contract import Contract


@dataclass(frozen=True)
class Pace:
    """Where a world is on its grid. Seconds on one monotonic clock."""

    #: How long a block may take where no period says.
    horizon_s: float = 1.0
    #: None: the client paces the world, blocks are released when they are asked for.
    grid: ReleaseGrid | None = None
    #: Of the block in flight, or of the next one where its action is there.
    release: Release | None = None
    #: Which of the last blocks were degraded.
    history: QualityHistory = field(default_factory=QualityHistory)
    #: Blocks that were done here.
    blocks_here: int = 0
    #: Skips since the last block.
    skipped_before: int = 0
    missed_periods: int = 0
    releases_skipped: int = 0
    degraded_blocks: int = 0

    @property
    def period_s(self) -> float:
        """The contract's period; 0 without one."""
        return 0.0 if self.grid is None else self.grid.period_s

    @property
    def is_open(self) -> bool:
        """Whether blocks have points of a grid and deadlines."""
        return self.grid is not None and self.grid.is_open

    @property
    def has_deadline(self) -> bool:
        """Whether the block in flight, or the next one, can be a miss."""
        return self.release is not None and math.isfinite(self.release.deadline_at)

    @property
    def due_at(self) -> float:
        """What it is ordered by: its deadline, or its horizon where it cannot be a miss."""
        if self.release is None:
            return math.inf
        if self.has_deadline:
            return self.release.deadline_at
        return self.release.release_at + self.horizon_s

    def late_s(self, now: float) -> float:
        """How long after its deadline the block in flight is, were it done now; 0 in time."""
        if self.release is None or not self.has_deadline:
            return 0.0
        return max(0.0, now - self.release.deadline_at)

    def asked(self, asked_at: float) -> Pace:
        """The next block's action is there, and the block before is done: it is released."""
        if self.grid is None:
            return replace(self, release=Release(asked_at, math.inf))
        grid, release = self.grid.release(asked_at)
        return _skipped(replace(self, grid=grid, release=release), release.skipped)

    def withdrawn(self, now: float) -> Pace:
        """The next block's action was taken back before its block began."""
        grid, release = self.grid, self.release
        if grid is not None and release is not None and now < release.release_at:
            # Its point is still to come, and the next action's block may have it.
            grid = replace(grid, index=grid.index - 1)
        return replace(self, grid=grid, release=None)

    def begun(self, degraded: bool) -> Pace:
        """A block begins."""
        return replace(
            self,
            history=self.history.after(degraded),
            degraded_blocks=self.degraded_blocks + degraded,
        )

    def done(self, now: float, block_s: float, expected_s: float) -> Pace:
        """The block in flight is done. It took `block_s` of compute, 0 expected: none measured."""
        blocks_here = self.blocks_here + 1
        grid = self.grid
        if grid is not None:
            grid = grid.finished(now, warm=transient_over(block_s, expected_s, blocks_here))
        return replace(
            self,
            grid=grid,
            release=None,
            blocks_here=blocks_here,
            skipped_before=0,
            missed_periods=self.missed_periods + (self.late_s(now) > 0),
        )

    def stopped(self, now: float) -> Pace:
        """The world stands still from now on: what passed before is not of its standing still."""
        if self.grid is None or self.release is not None:
            return self
        grid, skipped = self.grid.stopped(now)
        return _skipped(replace(self, grid=grid), skipped)

    def resumed(self, now: float, asked_at: float | None) -> Pace:
        """The world stood still between blocks until now; releases that passed are skips.

        `asked_at` is when the next block's action came, None where none is there.
        """
        if self.grid is None or not self.grid.is_open:
            return self if asked_at is None or self.release is not None else self.asked(asked_at)
        if self.release is not None and self.release.release_at >= now:
            return self
        stood = replace(self, grid=self.grid.finished(now), release=None)
        if self.release is not None:
            stood = _skipped(stood, 1)
        return stood if asked_at is None else stood.asked(asked_at)


def _skipped(pace: Pace, count: int) -> Pace:
    return replace(
        pace,
        skipped_before=pace.skipped_before + count,
        releases_skipped=pace.releases_skipped + count,
    )


def pace_of(contract: Contract) -> Pace:
    """The pace of a world that comes here under that contract.

    Its grid is closed, so that its first block here is whole; that is why a limit of degraded
    blocks in a row holds across a move although nobody tells what came before.
    """
    grid = ReleaseGrid(contract.period_ms / 1e3) if contract.period_ms > 0 else None
    firm = Firm.consecutive(contract.degraded_consecutive_max)
    return Pace(contract.horizon_ms / 1e3, grid, history=QualityHistory(firm))
