"""Blanks: granules that hold nothing but zeros, and so need not travel.

A state is an allocation, and not all of it is ever written: of Matrix-Game-2's 19.4 % is caches
that no step writes or reads (paper, section 3.3). Before the freeze the source looks for them and
names them in its offer; the target writes zeros there and digests what it wrote, while the world
still runs.

Nothing is believed. Both ends digest every granule of the frozen state as ever, and the source's
digests are in the seal. A chunk that was written after the source looked has another digest there
than zeros have. Both ends see that, and such a chunk, a late one, travels after all. Other bytes
can have the digest of zeros, though: so whoever looks reads every byte, and the source looks again
at what is frozen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from services.mover.chunking import Chunk, ChunkPlan
from services.mover.memory.base import Granules, SlotMemory
from worldline.errors import InvalidInput, TransferFailed
from worldline.state.digest import GRANULE_BYTES
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.segments import segments_of
from worldline.v1 import mover_pb2

#: A state with more runs is no state with leaves that nobody writes; the rest travels.
RUNS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Blanks:
    """Runs of granules, ascending and apart: (first granule, granules).

    Raises:
        InvalidInput: runs that are empty, out of order or too many.
    """

    runs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if len(self.runs) > RUNS_MAX:
            raise InvalidInput(
                f"{len(self.runs)} runs of blank granules, at most {RUNS_MAX} are taken",
                field="blanks",
            )
        if any(first < 0 or count < 1 for first, count in self.runs):
            raise InvalidInput("a run of blank granules is empty", field="blanks")
        if any(before[0] + before[1] >= behind[0] for before, behind in pairwise(self.runs)):
            raise InvalidInput("runs of blank granules touch or are out of order", field="blanks")

    @property
    def granule_count(self) -> int:
        """Granules of all runs."""
        return sum(count for _, count in self.runs)

    def cover(self, chunk: Chunk) -> bool:
        """Whether every granule of the chunk is blank: only whole chunks stay behind."""
        place = bisect_right(self.runs, chunk.first_granule, key=lambda run: run[0]) - 1
        if place < 0:
            return False
        first, count = self.runs[place]
        return chunk.first_granule + chunk.granule_count <= first + count

    def chunks(self, plan: ChunkPlan) -> Iterator[Chunk]:
        """The chunks of a plan that stay behind, in order."""
        return (chunk for chunk in plan if self.cover(chunk)) if self.runs else iter(())

    def within(self, layout: Layout) -> Blanks:
        """The same.

        Raises:
            InvalidInput: a run beyond the layout's extent.
        """
        granules = -(-layout.extent_bytes // GRANULE_BYTES)
        if self.runs and sum(self.runs[-1]) > granules:
            raise InvalidInput(
                f"blank granules up to {sum(self.runs[-1])} of {granules}", field="blanks"
            )
        return self


NO_BLANKS = Blanks()


def know_zeros(layout: Layout) -> None:
    """Have the digests of zeros at hand, which both ends need while a world stands still.

    Blocks for milliseconds, once for a layout; for a thread.
    """
    _ = segments_of(layout, GRANULE_BYTES).zeros


def find_blanks(memory: SlotMemory, extent_bytes: int) -> Blanks:
    """The blank granules of a slot. Blocks for as long as it takes to read them; for a thread.

    Whoever owns the slot may write meanwhile: what this finds is a guess until it is sealed.

    Raises:
        WorldlineError: the slot's device cannot say.
    """
    return Blanks(_runs(memory.zero_granules(extent_bytes)))


def write_blanks(memory: SlotMemory, blanks: Blanks, extent_bytes: int) -> None:
    """Make them zeros. Blocks; for a thread.

    Raises:
        WorldlineError: the slot's device has failed.
    """
    memory.clear(
        (first * GRANULE_BYTES, min(count * GRANULE_BYTES, extent_bytes - first * GRANULE_BYTES))
        for first, count in blanks.runs
    )


def check_seen(late: Iterable[Chunk], written: frozenset[int]) -> None:
    """Pass where the target will see every chunk that is not zeros any more, in the digests.

    Raises:
        TransferFailed: one has the digests of zeros (ZEROS_UNPROVEN); the next look will see it.
    """
    unseen = written - {chunk.index for chunk in late}
    if unseen:
        raise TransferFailed(
            f"chunk {min(unseen)} was written after it was found to be zeros, and has their digest",
            reason="ZEROS_UNPROVEN",
        )


def late_chunks(layout: Layout, chunks: Iterable[Chunk], crcs: Uint64s) -> tuple[Chunk, ...]:
    """Of the chunks that stayed behind, those whose digests are not those of zeros.

    `crcs` is one CRC per segment of the layout, of the source's frozen bytes.
    """
    segments = segments_of(layout, GRANULE_BYTES)
    late = []
    for chunk in chunks:
        run = segments.run(chunk.first_granule, chunk.granule_count)
        if not np.array_equal(crcs[run.start : run.stop], segments.zeros[run.start : run.stop]):
            late.append(chunk)
    return tuple(late)


def blanks_to_proto(blanks: Blanks) -> list[mover_pb2.GranuleRun]:
    """The wire form."""
    return [
        mover_pb2.GranuleRun(first_granule=first, granule_count=count)
        for first, count in blanks.runs
    ]


def blanks_from_proto(messages: Iterable[mover_pb2.GranuleRun], layout: Layout) -> Blanks:
    """Parse.

    Raises:
        InvalidInput: as `Blanks`, or beyond the layout's extent.
    """
    runs = tuple((each.first_granule, each.granule_count) for each in messages)
    return Blanks(runs).within(layout)


def _runs(granules: Granules) -> tuple[tuple[int, int], ...]:
    """The longest where there are too many, in order."""
    edges = np.flatnonzero(np.diff(granules, prepend=False, append=False)).tolist()
    runs = [(first, end - first) for first, end in zip(edges[::2], edges[1::2], strict=True)]
    longest = sorted(runs, key=lambda run: -run[1])[:RUNS_MAX]
    return tuple(sorted(longest))
