"""Pieces: how a copy out of a device is cut into what is copied, waited for and read at once. Pure.

A thread reads a piece in one call, which keeps the interpreter free: large pieces, so that there
are few calls. But a thread reads a piece many times slower than the device copies it (on an H200's
host 5 GB/s against 55, sixteen at once), and what has come last is read last. So pieces shrink
towards the end: each takes about as long to read as all that come after it take to be copied.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from services.mover.chunking import Chunk
from worldline.state.digest import GRANULE_BYTES

#: Enough that queueing a copy costs nothing beside it.
_LARGE_GRANULES = 16
#: Smaller ones cost more than they save: after each of them a thread waits for the interpreter.
_SMALL_GRANULES = 4
#: How many times slower a thread reads than the device copies.
_SLOWER = 12


@lru_cache(maxsize=8)
def pieces_of(extent_bytes: int) -> tuple[Chunk, ...]:
    """The pieces of an extent, in order; every byte is in one, each but the last whole granules."""
    starts, left = [0], -(-extent_bytes // GRANULE_BYTES)
    while left > 0:
        granules = min(_LARGE_GRANULES, max(_SMALL_GRANULES, left // (_SLOWER + 1)), left)
        starts.append(starts[-1] + granules)
        left -= granules
    return tuple(
        Chunk(
            index=index,
            offset_bytes=first * GRANULE_BYTES,
            size_bytes=min(behind * GRANULE_BYTES, extent_bytes) - first * GRANULE_BYTES,
            first_granule=first,
            granule_count=behind - first,
        )
        for index, (first, behind) in enumerate(pairwise(starts))
    )
