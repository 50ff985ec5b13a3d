"""File crossings: between a slot in host memory and a parked file, and the file read back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.mover.chunking import Chunk
from services.mover.crossing import Carry, Crossing, scratch
from services.mover.hostcrossing import copy_bytes, part_of
from services.mover.parkfile import BLOCK_BYTES, StateFile, padded_bytes
from worldline.state.digest import GRANULE_BYTES, Digester

#: Large enough that a disk reaches its rate with a few threads.
CHUNK_BYTES = 4 * GRANULE_BYTES


class FileWriting(Crossing):
    """Writes a slot's extent to a file and digests the slot; on the disk at its end."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, slot: memoryview, file: StateFile, before: Digester) -> None:
        self._slot = slot
        self._file = file
        self._before = before

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        """A thread's buffer holds the last block, which the extent may not fill."""
        with scratch(BLOCK_BYTES) as block:
            yield lambda chunk: self._carry(chunk, block)

    def _carry(self, chunk: Chunk, block: memoryview) -> None:
        part = part_of(self._slot, chunk)
        self._before.update(chunk.first_granule, chunk.granule_count, part)
        whole_bytes = part.nbytes - part.nbytes % BLOCK_BYTES
        self._file.write(chunk.offset_bytes, part[:whole_bytes])
        rest = part[whole_bytes:]
        if rest.nbytes:
            copy_bytes(block[: rest.nbytes], rest)
            self._file.write(chunk.offset_bytes + whole_bytes, block)

    def end(self) -> None:
        """Wait for the disk."""
        self._file.sync()


class FileReading(Crossing):
    """Reads a file into a slot, or into nothing but its digests, and digests what it read.

    With a slot, the digests are of the slot's bytes once they lie there.
    """

    chunk_bytes = CHUNK_BYTES

    def __init__(self, file: StateFile, slot: memoryview | None, after: Digester) -> None:
        self._file = file
        self._slot = slot
        self._after = after

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        """A thread's buffer holds a chunk where there is no slot, else the last block."""
        with scratch(self.chunk_bytes if self._slot is None else BLOCK_BYTES) as buffer:
            yield lambda chunk: self._carry(chunk, buffer)

    def _carry(self, chunk: Chunk, buffer: memoryview) -> None:
        if self._slot is None:
            self._file.read(chunk.offset_bytes, buffer[: padded_bytes(chunk.size_bytes)])
            part = buffer[: chunk.size_bytes]
        else:
            part = part_of(self._slot, chunk)
            self._fill(chunk.offset_bytes, part, buffer)
        self._after.update(chunk.first_granule, chunk.granule_count, part)

    def _fill(self, offset_bytes: int, part: memoryview, block: memoryview) -> None:
        whole_bytes = part.nbytes - part.nbytes % BLOCK_BYTES
        self._file.read(offset_bytes, part[:whole_bytes])
        rest = part[whole_bytes:]
        if rest.nbytes:
            self._file.read(offset_bytes + whole_bytes, block)
            copy_bytes(rest, block[: rest.nbytes])
