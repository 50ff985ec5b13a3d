"""Pieces: how a copy out of a device is cut into what is copied, waited for and read at once. Pure.

A thread reads a piece in one call, which keeps the interpreter free: large pieces, so that there
are few calls. A thread reads several times slower than the device copies, so the tail is cut into
small pieces: large ones are read while it is copied, and what is left to read when the last byte
has come is one small piece.
"""

from __future__ import annotations

from functools import lru_cache

from services.mover.chunking import Chunk
from worldline.state.digest import GRANULE_BYTES

#: Enough that queueing a copy costs nothing beside it.
_LARGE_BYTES = 16 * GRANULE_BYTES
_SMALL_BYTES = 4 * GRANULE_BYTES
#: What is copied while a thread reads a large piece, if it reads four times slower than that.
_TAIL_BYTES = 4 * _LARGE_BYTES


@lru_cache(maxsize=8)
def pieces_of(extent_bytes: int) -> tuple[Chunk, ...]:
    """The pieces of an extent, in order; every byte is in one, each but the last whole granules."""
    tail = max(0, extent_bytes - _TAIL_BYTES) // _LARGE_BYTES * _LARGE_BYTES
    starts = (*range(0, tail, _LARGE_BYTES), *range(tail, extent_bytes, _SMALL_BYTES))
    ends = (*starts[1:], extent_bytes)
    return tuple(
        Chunk(
            index=index,
            offset_bytes=start,
            size_bytes=end - start,
            first_granule=start // GRANULE_BYTES,
            granule_count=-(-(end - start) // GRANULE_BYTES),
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=False))
    )
