"""Chunk: a run of granules that goes on the wire at once; and the window over a transfer's chunks.

Pure arithmetic. Both ends compute the same plan from the numbers of the grant, so that a chunk
needs no header: its index is its tag, its size is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from worldline.errors import InvalidInput, InvariantBroken
from worldline.fields import whole

CHUNK_BYTES_MAX = 256 << 20
WINDOW_CHUNKS_MAX = 64
#: Low bits of a tag that number the chunk; the rest is the transfer's own.
CHUNK_INDEX_BITS = 24
#: The three highest numbers are those of the seal, its answer and the go.
CHUNKS_MAX = (1 << CHUNK_INDEX_BITS) - 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """One run of granules: bytes [offset, offset + size) of the slot."""

    index: int
    offset_bytes: int
    size_bytes: int
    first_granule: int
    granule_count: int


@dataclass(frozen=True)
class ChunkPlan:
    """How an extent is cut: every byte in exactly one chunk, each but the last whole granules.

    A tapered plan ends in chunks that halve down to one granule, so that little is left to digest
    after the last byte has landed (the paper's tail schedule, figure 4).

    Raises:
        InvalidInput: a chunk that is not a whole number of granules, or sizes out of range.
    """

    extent_bytes: int
    chunk_bytes: int
    granule_bytes: int
    tapered: bool = False

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

    @cached_property
    def _uniform_count(self) -> int:
        """Chunks of the full size: all but the last, or all before the taper."""
        if not self.tapered:
            return self.extent_bytes // self.chunk_bytes
        return max(0, self.extent_bytes - self.chunk_bytes) // self.chunk_bytes

    @cached_property
    def _tail_offsets(self) -> tuple[int, ...]:
        """Where the chunks after the uniform ones begin, and the extent's end."""
        offsets = [self._uniform_count * self.chunk_bytes]
        while (left_bytes := self.extent_bytes - offsets[-1]) > 0:
            granules = -(-left_bytes // self.granule_bytes)
            take = (granules + 1) // 2 if self.tapered else granules
            offsets.append(min(offsets[-1] + take * self.granule_bytes, self.extent_bytes))
        return tuple(offsets)

    def __len__(self) -> int:
        return self._uniform_count + len(self._tail_offsets) - 1

    def chunk(self, index: int) -> Chunk:
        """The chunk with this index."""
        if not 0 <= index < len(self):
            raise InvariantBroken(f"chunk {index} of {len(self)}")
        if index < self._uniform_count:
            offset, size = index * self.chunk_bytes, self.chunk_bytes
        else:
            offset, end = self._tail_offsets[index - self._uniform_count :][:2]
            size = end - offset
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
    def all_posted(self) -> bool:
        """Whether none is left to post."""
        return self._posted == self._chunk_count

    @property
    def in_flight(self) -> int:
        """Posted and not ended."""
        return self._posted - len(self._ended)

    @property
    def complete(self) -> bool:
        """Whether every chunk has ended."""
        return len(self._ended) == self._chunk_count
