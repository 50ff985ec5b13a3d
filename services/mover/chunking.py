"""Chunk: a run of granules that goes on the wire at once; and the window over a transfer's chunks.

Pure arithmetic. Both ends compute the same plan from the numbers of the grant, so that a chunk
needs no header: its index is its tag, its size is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from worldline.errors import InvalidInput, InvariantBroken
from worldline.fields import whole

CHUNK_BYTES_MAX = 256 << 20
WINDOW_CHUNKS_MAX = 64
#: Low bits of a tag that number the chunk; the rest is the transfer's own.
CHUNK_INDEX_BITS = 24
CHUNKS_MAX = 1 << CHUNK_INDEX_BITS


@dataclass(frozen=True, slots=True)
class Chunk:
    """One run of granules: bytes [offset, offset + size) of the slot."""

    index: int
    offset_bytes: int
    size_bytes: int
    first_granule: int
    granule_count: int


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How an extent is cut: every byte in exactly one chunk, only the last one short.

    Raises:
        InvalidInput: a chunk that is not a whole number of granules, or sizes out of range.
    """

    extent_bytes: int
    chunk_bytes: int
    granule_bytes: int

    def __post_init__(self) -> None:
        whole(self.extent_bytes, "extent_bytes")
        whole(self.granule_bytes, "granule_bytes", at_least=1, at_most=CHUNK_BYTES_MAX)
        whole(self.chunk_bytes, "chunk_bytes", at_least=self.granule_bytes, at_most=CHUNK_BYTES_MAX)
        if self.chunk_bytes % self.granule_bytes:
            raise InvalidInput(
                f"chunk_bytes {self.chunk_bytes} is not a multiple of the granule, "
                f"{self.granule_bytes}",
                field="chunk_bytes",
            )
        if len(self) > CHUNKS_MAX:
            raise InvalidInput(
                f"{len(self)} chunks, at most {CHUNKS_MAX} have a tag: choose a larger chunk_bytes",
                field="chunk_bytes",
            )

    def __len__(self) -> int:
        return -(-self.extent_bytes // self.chunk_bytes)

    def chunk(self, index: int) -> Chunk:
        """The chunk with this index."""
        if not 0 <= index < len(self):
            raise InvariantBroken(f"chunk {index} of {len(self)}")
        offset = index * self.chunk_bytes
        size = min(self.chunk_bytes, self.extent_bytes - offset)
        return Chunk(
            index=index,
            offset_bytes=offset,
            size_bytes=size,
            first_granule=offset // self.granule_bytes,
            granule_count=-(-size // self.granule_bytes),
        )

    def __iter__(self) -> Iterator[Chunk]:
        return (self.chunk(index) for index in range(len(self)))


class Window:
    """Which chunks may be on the wire: at most `size` posted and not ended, in order."""

    def __init__(self, chunk_count: int, size: int) -> None:
        whole(size, "window_chunks", at_least=1, at_most=WINDOW_CHUNKS_MAX)
        self._chunk_count = chunk_count
        self._size = size
        self._posted = 0
        self._ended: set[int] = set()

    def to_post(self) -> range:
        """Indices that may be posted now; they count as posted from here on."""
        room = self._size - (self._posted - len(self._ended))
        first = self._posted
        self._posted = min(self._chunk_count, first + max(0, room))
        return range(first, self._posted)

    def ended(self, index: int) -> None:
        """Chunk `index` is complete.

        Raises:
            InvariantBroken: it was not posted, or ended before.
        """
        if index in self._ended or not 0 <= index < self._posted:
            raise InvariantBroken(f"chunk {index} ended twice or before it was posted")
        self._ended.add(index)

    @property
    def in_flight(self) -> int:
        """Posted and not ended."""
        return self._posted - len(self._ended)

    @property
    def complete(self) -> bool:
        """Whether every chunk has ended."""
        return len(self._ended) == self._chunk_count
