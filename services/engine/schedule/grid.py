"""Grid: when the blocks of a session with a period are released.

The points of a grid are `anchor_at + k * period_s`. A block is released at a point and is due one
period later. The queue has depth 1: a point that passes while the block before it is unfinished
releases nothing, ever. It is a frame skip, and counted. So a late block costs the points it
overran and nothing after them: lateness cannot cascade (paper, section 5).

The grid is closed until the first block here, with what it costs once, is over; the end of that
block is the anchor. It is closed again in a new place (a move, an attach). After a pause of the
client it is anchored anew at the action that ends the pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from worldline.errors import InvalidInput

#: A client silent for longer than this has paused; before, it waits for the next point.
PAUSE_PERIODS = 2.0
#: A first block is a transient while it takes this much longer than measured blocks do,
WARM_RATIO_MAX = 1.5
#: but no more than so many are.
WARM_BLOCKS_MAX = 4


@dataclass(frozen=True, slots=True)
class Release:
    """When one block may start and is due, and which points passed before it."""

    release_at: float
    #: Infinite while the grid is closed: a transient is measured, not held to a deadline.
    deadline_at: float
    #: Points that passed while the block before was unfinished.
    skipped: int = 0
    #: Points that passed while the client had asked for nothing.
    unclaimed: int = 0
    #: The grid was anchored anew, at `release_at`.
    reanchored: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseGrid:
    """The grid of one session, and how far it has come.

    Raises:
        InvalidInput: a period that is none.
    """

    period_s: float
    #: The point with index 0; None while the grid is closed.
    anchor_at: float | None = None
    #: The last point used, by a block or while it was unfinished.
    index: int = -1
    #: When the last block was done.
    free_at: float = -math.inf

    def __post_init__(self) -> None:
        if not 0 < self.period_s < math.inf:
            raise InvalidInput(
                f"period_s is {self.period_s}: a grid needs a period; without one blocks are "
                "released when they are asked for",
                field="period_s",
            )

    @property
    def is_open(self) -> bool:
        """Whether releases have points and deadlines."""
        return self.anchor_at is not None

    def opened(self, at: float) -> ReleaseGrid:
        """Anchored at the end of the first block's transient."""
        return ReleaseGrid(self.period_s, at, free_at=at)

    def closed(self) -> ReleaseGrid:
        """In a new place: the first block there is measured again."""
        return ReleaseGrid(self.period_s)

    def finished(self, at: float, *, warm: bool = True) -> ReleaseGrid:
        """The block in flight is done. A closed grid opens, unless it was still a transient."""
        if self.anchor_at is None:
            return self.opened(at) if warm else self
        return replace(self, free_at=max(at, self.free_at))

    def release(self, asked_at: float) -> tuple[ReleaseGrid, Release]:
        """The release of the next block, asked for at `asked_at`, and the grid with it used.

        Call it when the block before is done and the next one's action is there, once a block.
        """
        if self.anchor_at is None:
            return self, Release(asked_at, math.inf)
        ready_at = max(asked_at, self.free_at)
        index = max(self.index + 1, self._first_from(ready_at))
        # What passed before the device was free was overrun; the rest had nobody who wanted it.
        overrun = max(self.index + 1, min(index, self._first_from(self.free_at)))
        skipped, unclaimed = overrun - self.index - 1, index - overrun
        if asked_at - self.free_at > PAUSE_PERIODS * self.period_s:
            grid = ReleaseGrid(self.period_s, asked_at, index=0, free_at=self.free_at)
            deadline_at = asked_at + self.period_s
            return grid, Release(asked_at, deadline_at, skipped, unclaimed, reanchored=True)
        at = self.point(index)
        release = Release(at, at + self.period_s, skipped, unclaimed)
        return replace(self, index=index), release

    def stopped(self, now: float) -> tuple[ReleaseGrid, int]:
        """The world stands still from `now` on: points before it are over.

        Also how many of them passed while the block before was unfinished; the others had nobody
        who wanted them.
        """
        if self.anchor_at is None:
            return self, 0
        over = max(self.index, self._first_from(now) - 1)
        overrun = max(self.index, min(over, self._first_from(self.free_at) - 1))
        return replace(self, index=over), overrun - self.index

    def next_point(self, now: float) -> float | None:
        """The first point from `now` on that no block has used; None while closed."""
        if self.anchor_at is None:
            return None
        return self.point(max(self.index + 1, self._first_from(now)))

    def point(self, index: int) -> float:
        """When that point is. From the anchor each time, so that nothing adds up to a drift.

        Raises:
            InvalidInput: the grid is closed.
        """
        if self.anchor_at is None:
            raise InvalidInput("a closed grid has no points", field="anchor_at")
        return self.anchor_at + index * self.period_s

    def _first_from(self, at: float) -> int:
        """The index of the first point that is not before `at`, to the bit."""
        assert self.anchor_at is not None  # noqa: S101
        if at <= self.anchor_at:
            return 0
        index = math.ceil((at - self.anchor_at) / self.period_s)
        while self.point(index) < at:
            index += 1
        while index > 0 and self.point(index - 1) >= at:
            index -= 1
        return index


def transient_over(block_s: float, expected_s: float, blocks_done: int) -> bool:
    """Whether the block just done was a usual one, so that the grid may open at its end.

    `expected_s` is what measured blocks take, 0 where none was measured: then one is enough.
    `blocks_done` counts those of this place, with the one just done.
    """
    if expected_s <= 0 or blocks_done >= WARM_BLOCKS_MAX:
        return True
    return block_s <= WARM_RATIO_MAX * expected_s
