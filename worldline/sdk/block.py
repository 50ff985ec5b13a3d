"""Block: what the world generated between two yield points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldline.errors import InvalidInput
from worldline.v1 import engine_pb2

_CHANNELS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One generated block.

    `frames` is uint8 RGB [frames, height, width, 3], read-only, with no frames where they were
    not wanted; `frames_digest` (CRC-64/NVME of the frames) is always there, `state_digest` only
    where digests were wanted. `epoch` tells the owner that generated it.

    `steps` of `steps_full` denoising steps are in it; fewer only where the contract has a quality
    floor and time ran short, and then `degraded_because` says why. `releases_skipped` are the
    releases of the contract's period that passed without a block before this one; `late_ms` is how
    long after its deadline it was done, 0 where in time or without a period.
    """

    index: int
    epoch: int
    frames: npt.NDArray[np.uint8]
    frames_digest: int
    state_digest: int | None
    generate_ms: float
    steps: int
    steps_full: int
    degraded_because: str
    releases_skipped: int
    late_ms: float

    @property
    def degraded(self) -> bool:
        """Whether it has fewer denoising steps than the model's full quality."""
        return self.steps < self.steps_full


def block_from_proto(message: engine_pb2.Block) -> Block:
    """Parse once, at the edge.

    Raises:
        InvalidInput: the frames' bytes are not frame_count x height x width x 3.
    """
    shape = (message.frame_count, message.height, message.width, _CHANNELS)
    expected_bytes = shape[0] * shape[1] * shape[2] * shape[3]
    if not message.frames:
        shape, expected_bytes = (0, message.height, message.width, _CHANNELS), 0
    if len(message.frames) != expected_bytes:
        raise InvalidInput(
            f"block {message.block_index} has {len(message.frames)} bytes of frames where its "
            f"shape {shape} makes {expected_bytes}",
            field="block.frames",
        )
    return Block(
        index=message.block_index,
        epoch=message.epoch,
        frames=np.frombuffer(message.frames, dtype=np.uint8).reshape(shape),
        frames_digest=message.frames_digest,
        state_digest=message.state_digest if message.HasField("state_digest") else None,
        generate_ms=message.generate_ms,
        steps=message.steps,
        steps_full=message.steps_full,
        degraded_because=message.degraded_because,
        releases_skipped=message.releases_skipped,
        late_ms=message.late_ms,
    )
