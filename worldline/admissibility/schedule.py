"""Schedule: in which pieces a state crosses the wire, and so how much is left to digest at its end.

Paper, section 6.4 and figure 4: sequential verification digests after the last byte; pipelined
digests each chunk while later ones are on the wire; the tail schedule also lets chunks shrink
towards the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from worldline.admissibility.bounds import check_state_bytes
from worldline.errors import InvalidInput
from worldline.fields import whole

#: The paper's chunk (section 6.4), and the granule that a digest covers.
CHUNK_BYTES = 64 << 20
GRANULE_BYTES = 1 << 20


class VerificationPlacement(Enum):
    """Where on the path of a move its bytes are digested."""

    SEQUENTIAL = "sequential"
    PIPELINED = "pipelined"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Consecutive chunks of one size, in bytes each."""

    chunks: int
    chunk_bytes: int

    @property
    def run_bytes(self) -> int:
        """Bytes of the whole run."""
        return self.chunks * self.chunk_bytes


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where digests are computed, and in chunks of how many bytes.

    A sequential schedule has one piece, the state. A tail schedule is uniform until less
    than two chunks are left, and then halves what is left, in whole granules, down to one.

    Raises:
        InvalidInput: a granule of no bytes, or a chunk that is no whole number of granules;
            `field` is its name.
    """

    placement: VerificationPlacement = VerificationPlacement.PIPELINED
    chunk_bytes: int = CHUNK_BYTES
    granule_bytes: int = GRANULE_BYTES

    def __post_init__(self) -> None:
        whole(self.granule_bytes, "granule_bytes", at_least=1)
        whole(self.chunk_bytes, "chunk_bytes", at_least=self.granule_bytes)
        if self.chunk_bytes % self.granule_bytes:
            raise InvalidInput(
                f"chunk_bytes {self.chunk_bytes} is not a multiple of the granule, "
                f"{self.granule_bytes}",
                field="chunk_bytes",
            )

    def runs(self, state_bytes: int) -> tuple[ChunkRun, ...]:
        """How a state of that many bytes is cut; the runs add up to it.

        Raises:
            InvalidInput: a size out of range.
        """
        check_state_bytes(state_bytes, "state_bytes")
        if self.placement is VerificationPlacement.SEQUENTIAL:
            return (ChunkRun(1, state_bytes),)
        if self.placement is VerificationPlacement.PIPELINED:
            uniform, left_bytes = divmod(state_bytes, self.chunk_bytes)
            tail_bytes = [left_bytes] if left_bytes else []
        else:
            uniform = max(0, state_bytes - self.chunk_bytes) // self.chunk_bytes
            tail_bytes = self._taper(state_bytes - uniform * self.chunk_bytes)
        head = (ChunkRun(uniform, self.chunk_bytes),) if uniform else ()
        return head + tuple(ChunkRun(1, size) for size in tail_bytes)

    def _taper(self, left_bytes: int) -> list[int]:
        sizes: list[int] = []
        while left_bytes:
            granules = -(-left_bytes // self.granule_bytes)
            size = min((granules + 1) // 2 * self.granule_bytes, left_bytes)
            sizes.append(size)
            left_bytes -= size
        return sizes
