"""Session: one simulated session: its contract, its grid, and a ledger of what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from services.engine.schedule.grid import Release, ReleaseGrid
from services.engine.schedule.ladder import Firm, Ladder, QualityHistory, Steps
from worldline.contract import ServiceClass


class Grid(Protocol):
    """What a session is released by: the engine's `ReleaseGrid`, or what is tried instead."""

    def finished(self, at: float, *, warm: bool = True) -> Grid:
        """The block in flight is done."""

    def release(self, asked_at: float) -> tuple[Grid, Release]:
        """The next block's release."""


_NO_LIMIT = Firm()


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session was promised, and what it wants.

    `blocks` is the size of a finite job; None for a session that never ends. A session without a
    period wants its next block as soon as it has one.
    """

    session_id: str
    service_class: ServiceClass
    ladder: Ladder
    period_s: float = 0.0
    blocks: int | None = None
    firm: Firm = _NO_LIMIT


@dataclass(slots=True)
class Ledger:
    """What became of one session."""

    blocks: int = 0
    #: Blocks that were done after their deadline.
    missed: int = 0
    #: Points that passed while a block was unfinished, or while the grid was still closed.
    skipped: int = 0
    degraded: int = 0
    #: Misses in a row: now, and at most.
    run: int = 0
    longest_run: int = 0
    #: From release to done, of blocks with a deadline.
    response_s: list[float] = field(default_factory=list)

    def done(self, release: Release, now: float) -> None:
        """One block more, with a deadline."""
        self.run = self.run + 1 if now > release.deadline_at else 0
        self.longest_run = max(self.longest_run, self.run)
        self.missed += self.run > 0
        self.response_s.append(now - release.release_at)


class Session:
    """A client that always has its next action ready, and the state of its block."""

    def __init__(self, terms: Terms, quantum_s: float, grid: Grid | None = None) -> None:
        self.terms = terms
        #: What the schedule believes a quantum to take.
        self.quantum_s = quantum_s
        self.ledger = Ledger()
        self.history = QualityHistory(terms.firm)
        self.quanta_left = 0
        self.block_index = 0
        self._degraded = False
        self._grid: Grid | None = grid
        self.asked_at = 0.0
        self.release = Release(0.0, math.inf)
        self._ask(0.0)

    @property
    def mid_block(self) -> bool:
        """A block has begun."""
        return self.quanta_left > 0

    @property
    def bulk_shaped(self) -> bool:
        """Whether its requests cost what bulk does."""
        return self.terms.service_class is ServiceClass.C3_BULK

    @property
    def wants_more(self) -> bool:
        """Its job is not done."""
        blocks = self.terms.blocks
        return blocks is None or self.ledger.blocks < blocks

    def begin(self, steps: Steps) -> None:
        """Its next block has so many steps."""
        self.quanta_left = self.terms.ladder.quanta(steps.steps)
        self._degraded = steps.degraded
        self.history = self.history.after(steps.degraded)

    def quantum_done(self, now: float) -> None:
        """One quantum less to go."""
        self.quanta_left -= 1
        if self.quanta_left == 0:
            self._block_done(now)

    def _block_done(self, now: float) -> None:
        release, ledger = self.release, self.ledger
        ledger.blocks += 1
        ledger.degraded += self._degraded
        if release.deadline_at < math.inf:
            ledger.done(release, now)
        elif self.terms.period_s > 0:
            # A client that opened a session and sees nothing yet sees no frame at these points.
            ledger.skipped += int((now - release.release_at) / self.terms.period_s)
        self.block_index += 1
        if self._grid is not None:
            self._grid = self._grid.finished(now)
        self._ask(now)

    def _ask(self, now: float) -> None:
        self.asked_at = now
        if self._grid is None:
            self.release = Release(now, math.inf)
            return
        self._grid, self.release = self._grid.release(now)
        self.ledger.skipped += self.release.skipped


def open_grid(period_s: float) -> ReleaseGrid:
    """A session's grid as the engine makes it: closed."""
    return ReleaseGrid(period_s)
