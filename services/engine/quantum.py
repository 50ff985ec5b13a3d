"""Quantum: one model pass in the worker's thread, and what it gave."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from services.engine.memory import Memory
from services.engine.world import NO_FRAMES, Action, Frames, StateTree, WorldModel
from worldline.contract import DecodeTier
from worldline.errors import InvariantBroken, WorldlineError
from worldline.state.digest import crc64


@dataclass(frozen=True)
class Quantum:
    """What one quantum gave: nothing yet, a finished block, or a failure."""

    elapsed_ms: float
    frames: Frames | None = None
    frames_digest: int = 0
    state_digest: int | None = None
    error: WorldlineError | None = None

    @property
    def over(self) -> bool:
        """Whether it was the last of its block, for good or ill."""
        return self.frames is not None or self.error is not None


def advance(
    run: Generator[None, None, Frames], memory: Memory, tier: DecodeTier, digest_wanted: bool
) -> Quantum:
    """One quantum, in the worker's thread; with the block's last one also what is sent of it."""
    started = time.perf_counter()
    try:
        finished = step(run)
        # A quantum ends when the device is done with it: only then is its time known, may another
        # world run, and may the state be read, frozen or sent (invariant I9).
        memory.settle()
        if finished is None:
            return Quantum(_ms_since(started))
        memory.check_in_place()
        frames = decoded(finished, tier)
        frames_digest = crc64(frames.pixels)
        digest = memory.digests().whole if digest_wanted else None
        # All of it: for as long nobody else can have the worker.
        return Quantum(_ms_since(started), frames, frames_digest, digest)
    except Exception as error:
        # Whatever a model does wrong ends its world, never the engine and its other worlds.
        return Quantum(_ms_since(started), error=_without_frames(error))


def block_of(
    model: WorldModel, state: StateTree, action: Action, steps: int
) -> Generator[None, None, Frames]:
    """The model's block, of which nothing runs before the first `next`: also a `block` that is no
    generator function runs in the worker's thread, and fails there.
    """
    return (yield from model.block(state, action, steps))


def step(run: Generator[None, None, Frames]) -> Frames | None:
    """One quantum; the block's frames after the last, None before.

    Raises:
        InvariantBroken: the model returned something else; it would look like a block without end.
    """
    try:
        next(run)
    except StopIteration as finished:
        if isinstance(finished.value, Frames):
            return finished.value
        raise InvariantBroken(
            f"the model's block returned {type(finished.value).__name__}, not Frames"
        ) from None
    return None


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1e3


def decoded(frames: Frames, tier: DecodeTier) -> Frames:
    """What the contract's decode tier leaves of a block: all, every second pixel, nothing."""
    if tier is DecodeTier.FULL or frames.count == 0:
        return frames
    if tier is DecodeTier.NONE:
        return NO_FRAMES
    shape = (frames.count, frames.height, frames.width, 3)
    half = np.frombuffer(frames.pixels, dtype=np.uint8).reshape(shape)[:, ::2, ::2]
    return Frames(half.shape[0], half.shape[1], half.shape[2], half.tobytes())


def _without_frames(error: Exception) -> WorldlineError:
    """The same error without its traceback, whose frames would keep views of the slot alive."""
    if isinstance(error, WorldlineError):
        return type(error)(error.message, reason=error.reason, field=error.field, leaf=error.leaf)
    return InvariantBroken(f"the model failed: {type(error).__name__}: {error}")
