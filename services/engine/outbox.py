"""Outbox: the last blocks of a session, for clients that lost their stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from services.engine.quality import Quality
from services.engine.world import Frames
from worldline.errors import IntegrityError, InvalidInput, InvariantBroken

#: Blocks kept. A client may have this many actions on the way before it must read.
OUTBOX_BLOCKS = 8


@dataclass(frozen=True)
class BlockRecord:
    """One generated block as the client sees it."""

    block_index: int
    epoch: int
    frames: Frames
    frames_digest: int
    state_digest: int | None
    generate_ms: float
    quality: Quality
    #: Releases that passed without a block since the one before.
    releases_skipped: int = 0
    #: After its deadline; 0 in time, or without one.
    late_ms: float = 0.0


class Outbox:
    """Consecutive blocks, oldest dropped first."""

    def __init__(self, next_block_index: int, capacity: int = OUTBOX_BLOCKS) -> None:
        #: Index of the block that will be put next.
        self.next_block_index = next_block_index
        self.capacity = capacity
        self._records: deque[BlockRecord] = deque(maxlen=capacity)

    @property
    def first_block_index(self) -> int:
        """Oldest block that can still be had; `next_block_index` when there is none."""
        return self.next_block_index - len(self._records)

    def put(self, record: BlockRecord) -> None:
        """Keep a block.

        Raises:
            InvariantBroken: it does not follow the last one.
        """
        if record.block_index != self.next_block_index:
            raise InvariantBroken(
                f"block {record.block_index} after {self.next_block_index - 1} in the outbox"
            )
        self._records.append(record)
        self.next_block_index += 1

    def get(self, block_index: int) -> BlockRecord | None:
        """The block, or None when it is the next one and not there yet.

        Raises:
            InvalidInput: beyond the next block.
            IntegrityError: it is gone for good (reason BLOCKS_LOST).
        """
        if block_index == self.next_block_index:
            return None
        if block_index > self.next_block_index:
            raise InvalidInput(
                f"block {block_index} is asked for: the next one is {self.next_block_index}",
                field="join.next_block_index",
            )
        if block_index < self.first_block_index:
            raise IntegrityError(
                f"block {block_index} is gone: this engine has blocks from "
                f"{self.first_block_index} on",
                reason="BLOCKS_LOST",
            )
        return self._records[block_index - self.first_block_index]
