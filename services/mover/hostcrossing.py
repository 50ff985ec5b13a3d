"""Host crossings: between a slot in host memory and a parked copy in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from services.mover.chunking import Chunk
from services.mover.crossing import Carry, Crossing
from worldline.state.digest import Digester


def part_of(view: memoryview, chunk: Chunk) -> memoryview:
    """The chunk's bytes of an extent."""
    return view[chunk.offset_bytes : chunk.offset_bytes + chunk.size_bytes]


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy equally long views; unlike a slice assignment this lets other threads run."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class HostCrossing(Crossing):
    """Copies `source` to `target`, both in host memory, and digests them.

    Each chunk is digested at the source before it is copied and at the target after, while it is
    in the cache; `before` may be None where the source's digests are known.
    """

    def __init__(
        self,
        source: memoryview,
        target: memoryview,
        *,
        before: Digester | None,
        after: Digester,
    ) -> None:
        self._source = source
        self._target = target
        self._before = before
        self._after = after

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        """Needs nothing of its own."""
        yield self._carry

    def _carry(self, chunk: Chunk) -> None:
        source, target = part_of(self._source, chunk), part_of(self._target, chunk)
        if self._before is not None:
            self._before.update(chunk.first_granule, chunk.granule_count, source)
        copy_bytes(target, source)
        self._after.update(chunk.first_granule, chunk.granule_count, target)
