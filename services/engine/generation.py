"""Generation: the loop that gives quanta to worlds, one at a time, as the schedule says."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np
import structlog

from services.engine import events as ev
from services.engine.lease import Lease
from services.engine.memory import Memory
from services.engine.outbox import BlockRecord
from services.engine.profile import Profiles
from services.engine.schedule import Candidate, candidate_of, next_release, pick
from services.engine.session import Session
from services.engine.signal import Signal, wait_for_change
from services.engine.worker import Worker
from services.engine.world import NO_FRAMES, Frames
from worldline.contract import DecodeTier
from worldline.errors import InvariantBroken, WorldlineError
from worldline.state.digest import crc64
from worldline.telemetry import instruments

_log = structlog.get_logger(__name__)

#: Looks again this often even when nothing woke it: a lease can end without an event.
_IDLE_S = 1.0


@dataclass(frozen=True)
class Quantum:
    """What one quantum gave: nothing yet, a finished block, or a failure."""

    elapsed_ms: float
    frames: Frames | None = None
    frames_digest: int = 0
    state_digest: int | None = None
    error: WorldlineError | None = None


class Generation:
    """Runs quanta while the lease holds. Owns the choice of the next one and its outcome."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        worker: Worker,
        profiles: Profiles,
        lease: Callable[[], Lease],
    ) -> None:
        self._sessions = sessions
        self._worker = worker
        self._profiles = profiles
        self._lease = lease
        #: Notify after anything that may make a world runnable.
        self.wake = Signal()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            token = self.wake.token()
            now = time.monotonic()
            self._drop_disowned(now)
            candidates = self._candidates()
            choice = pick(candidates, now)
            if choice is not None and self._allowed(self._sessions[choice.session_id], now):
                await self._quantum(self._sessions[choice.session_id])
                continue
            release_at = next_release(candidates, now)
            idle_s = _IDLE_S if release_at is None else min(_IDLE_S, release_at - now)
            await wait_for_change(token, idle_s)

    def _drop_disowned(self, now: float) -> None:
        """End worlds that lost their owner in mid-block; here no quantum of theirs is running."""
        for session in list(self._sessions.values()):
            ending = session.world.ending
            if session.world.disowned and ending is not None and ending.error is not None:
                session.apply(ev.BlockFailed(ending.error), now)

    def _candidates(self) -> list[Candidate]:
        found = (
            candidate_of(session.world, session.begun_at, session.room, session.held > 0)
            for session in self._sessions.values()
            # In doubt it waits: where the directory does not name it, its slot may be another's.
            if session.renewals_missed == 0
        )
        return [candidate for candidate in found if candidate is not None]

    def _allowed(self, session: Session, now: float) -> bool:
        """The lease must outlast the quantum; one longer than half a lease could never start."""
        lease = self._lease()
        expected_s = self._profiles.quantum_s(session.model.preset)
        return lease.holds(now, min(expected_s, lease.lease_s / 2))

    async def _quantum(self, session: Session) -> None:
        run = session.run
        if run is None or not session.world.mid_block:
            run = session.begin(session.world.pending[0].action, time.monotonic())
        memory = session.open_memory()
        digest_wanted = session.stream is not None and session.stream.digests_wanted
        tier = session.contract.decode_tier
        done = await self._worker.run(lambda: advance(run, memory, tier, digest_wanted))
        session.spent_ms += done.elapsed_ms
        model = session.model
        if done.error is None:
            self._profiles.add(model.preset, model.quanta_per_block, done.elapsed_ms)
            instruments().quantum_ended(model.preset, done.elapsed_ms)
        if done.error is not None or done.frames is not None:
            # Nothing here may keep the state's views alive once the world ends with this block.
            session.run = None
            del run, memory
            self._block_over(session, done)

    def _block_over(self, session: Session, done: Quantum) -> None:
        if session.world.disowned:
            return  # nobody may see this block; the loop ends its world
        now = time.monotonic()
        if done.error is not None:
            _log.error(
                "block.failed",
                session_id=session.session_id,
                block_index=session.world.block_index,
                reason=done.error.reason,
                error=str(done.error),
            )
            session.apply(ev.BlockFailed(done.error), now)
            return
        missed_before = session.world.missed_periods
        session.outbox.put(
            BlockRecord(
                block_index=session.world.block_index,
                epoch=session.world.epoch,
                frames=done.frames or NO_FRAMES,
                frames_digest=done.frames_digest,
                state_digest=done.state_digest,
                generate_ms=session.spent_ms,
            )
        )
        session.apply(ev.BlockDone(), now)
        instruments().block_generated(session.model.preset, session.spent_ms)
        missed = session.world.missed_periods - missed_before
        if missed:
            instruments().period_missed(session.model.preset, missed)


def advance(
    run: Generator[None, None, Frames], memory: Memory, tier: DecodeTier, digest_wanted: bool
) -> Quantum:
    """One quantum, in the worker's thread; with the block's last one also what is sent of it."""
    started = time.perf_counter()
    try:
        finished = _step(run)
        # A quantum ends when the device is done with it: only then is its time known, may another
        # world run, and may the state be read, frozen or sent (invariant I9).
        memory.settle()
        elapsed_ms = (time.perf_counter() - started) * 1e3
        if finished is None:
            return Quantum(elapsed_ms)
        memory.check_in_place()
        frames = decoded(finished, tier)
        digest = memory.digests().whole if digest_wanted else None
        return Quantum(elapsed_ms, frames, crc64(frames.pixels), digest)
    except Exception as error:
        # Whatever a model does wrong ends its world, never the engine and its other worlds.
        return Quantum((time.perf_counter() - started) * 1e3, error=_without_frames(error))


def _step(run: Generator[None, None, Frames]) -> Frames | None:
    """One quantum; the block's frames after the last, None before."""
    try:
        next(run)
    except StopIteration as finished:
        frames: Frames = finished.value
        return frames
    return None


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
