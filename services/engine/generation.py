"""Generation: the loop that gives quanta to worlds, one at a time, as the schedule says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import structlog

from services.engine import events as ev
from services.engine.claimbook import ClaimBook
from services.engine.claims import bulk_waits, wave_member
from services.engine.flight import Flight
from services.engine.lease import Lease
from services.engine.outbox import BlockRecord
from services.engine.profile import Profiles
from services.engine.quality import Quality, choose_quality, full_quality, replayed_quality
from services.engine.quantum import Quantum, advance
from services.engine.schedule import Choice, Chooser, Claim, Guard, pick, wave_floors
from services.engine.session import Session
from services.engine.signal import Signal, wait_for_change
from services.engine.worker import Worker
from services.engine.world import NO_FRAMES, quanta_of
from worldline.telemetry import instruments

_log = structlog.get_logger(__name__)

#: Looks again this often even when nothing woke it: a lease can end without an event.
_IDLE_S = 1.0
#: How far measured rows are trusted.
GUARD = Guard()


class Generation:
    """Runs quanta while the lease holds. Owns the choice of the next one and its outcome."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        worker: Worker,
        profiles: Profiles,
        lease: Callable[[], Lease],
        *,
        degrade_for_bulk: bool = False,
        choose: Chooser = pick,
    ) -> None:
        self._sessions = sessions
        self._worker = worker
        self._profiles = profiles
        self._lease = lease
        self._book = ClaimBook(GUARD)
        self._degrade_for_bulk = degrade_for_bulk
        self._choose = choose
        #: What the metrics are still to be told.
        self._uncounted: list[Callable[[], None]] = []
        #: Notify after anything that may make a world runnable.
        self.wake = Signal()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            token = self.wake.token()
            now = time.monotonic()
            self._drop_disowned(now)
            claims = self._claims(now)
            floors = wave_floors(self._wave_members())
            choice = self._choose(claims, now, guard=GUARD, floors=floors)
            until = _IDLE_S + now
            if isinstance(choice, Choice):
                session = self._sessions[choice.session_id]
                if self._allowed(session, now):
                    await self._quanta(session, choice.claim, claims)
                    continue
            else:
                until = min(until, choice.until)
            self._count_done()
            await wait_for_change(token, max(0.0, until - now))

    def _count_done(self) -> None:
        """Tell the metrics of what is done and not told yet."""
        uncounted, self._uncounted = self._uncounted, []
        for count in uncounted:
            count()

    def _drop_disowned(self, now: float) -> None:
        """End worlds that lost their owner in mid-block; here no quantum of theirs is running."""
        for session in list(self._sessions.values()):
            ending = session.world.ending
            if session.world.disowned and ending is not None and ending.error is not None:
                session.apply(ev.BlockFailed(ending.error), now)

    def _claims(self, now: float) -> list[Claim]:
        gives = self._gives()
        found = (
            self._book.claim(session, self._profiles.expected(session.shape), now, gives=gives)
            for session in self._sessions.values()
            # In doubt it waits: where the directory does not name it, its slot may be another's.
            if session.renewals_missed == 0
        )
        return [claim for claim in found if claim is not None]

    def _gives(self) -> bool:
        """Whether bulk waits that worlds with a floor go down to it for."""
        return self._degrade_for_bulk and any(
            session.room and bulk_waits(session.world, session.contract)
            for session in self._sessions.values()
        )

    def _wave_members(self) -> Iterator[tuple[str, int]]:
        for session in self._sessions.values():
            member = wave_member(session.world, session.contract)
            if member is not None:
                yield member

    def _allowed(self, session: Session, now: float) -> bool:
        """The lease must outlast the quantum; one longer than half a lease could never start."""
        lease = self._lease()
        expected_s = self._profiles.quantum_s(session.shape)
        return lease.holds(now, min(expected_s, lease.lease_s / 2))

    async def _quanta(self, session: Session, claim: Claim, claims: list[Claim]) -> None:
        """A quantum, and those of its block that follow while nobody else claims any: the choice
        would be the same, so the next is begun before the last is reckoned.
        """
        flight = session.flight
        if flight is None or not session.world.mid_block:
            flight = self._begin(session, claim, claims)
        passing = self._worker.submit(_pass_of(session, flight))
        # While it is computed nobody waits for what metrics take.
        self._count_done()
        while True:
            done = await passing
            goes_on = not done.over and self._is_alone(session)
            if goes_on:
                passing = self._worker.submit(_pass_of(session, flight))
            self._reckon(session, flight, done)
            if not goes_on:
                break
        if done.over:
            # Nothing here may keep the state's views alive once the world ends with this block.
            session.flight = None
            quality, spent_ms = flight.quality, flight.spent_ms
            del flight
            self._block_over(session, done, quality, spent_ms)

    def _is_alone(self, session: Session) -> bool:
        """Whether a world in mid-block would be chosen again because there is no other claim."""
        now = time.monotonic()
        if session.world.disowned or not self._allowed(session, now):
            return False
        return [claim.session_id for claim in self._claims(now)] == [session.session_id]

    def _reckon(self, session: Session, flight: Flight, done: Quantum) -> None:
        flight.quanta_done += 1
        flight.spent_ms += done.elapsed_ms
        if done.error is None:
            self._learn(session, done)
            self._uncounted.append(partial(_count_quantum, session.model.preset, done.elapsed_ms))

    def _begin(self, session: Session, claim: Claim, claims: list[Claim]) -> Flight:
        now = time.monotonic()
        pace, pending = session.world.pace, session.world.pending
        quality = full_quality(session.model)
        if pending and pending[0].steps > 0:
            quality = replayed_quality(session.model, pending[0].steps)
        elif pace.has_deadline:
            quality = choose_quality(
                session.model,
                session.ladder,
                claim,
                claims,
                now,
                expected=self._profiles.expected(session.shape),
                guard=GUARD,
                history=pace.history,
                gives=self._gives(),
            )
        return session.begin(quality, now)

    def _learn(self, session: Session, done: Quantum) -> None:
        """A session's first block has a shorter window than all others: no row is made of it."""
        if session.world.block_index > 0:
            closing, now = done.frames is not None, time.monotonic()
            self._profiles.add(
                session.shape, session.model, done.elapsed_ms, closing=closing, now=now
            )

    def _block_over(
        self, session: Session, done: Quantum, quality: Quality, spent_ms: float
    ) -> None:
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
        record = BlockRecord(
            block_index=session.world.block_index,
            epoch=session.world.epoch,
            frames=done.frames or NO_FRAMES,
            frames_digest=done.frames_digest,
            state_digest=done.state_digest,
            generate_ms=spent_ms,
            quality=quality,
            releases_skipped=session.world.pace.skipped_before,
            late_ms=session.world.pace.late_s(now) * 1e3,
        )
        session.outbox.put(record)
        quanta = quanta_of(session.model, quality.steps)
        expected_s = self._profiles.expected(session.shape).block_s(quanta)
        session.apply(ev.BlockDone(spent_ms / 1e3, expected_s), now)
        self._uncounted.append(partial(_count_block, session.model.preset, record))


def _pass_of(session: Session, flight: Flight) -> Callable[[], Quantum]:
    """The next pass of a block, for the worker; what its stream wants is asked each time."""
    digest_wanted = session.stream is not None and session.stream.digests_wanted
    tier = session.contract.decode_tier
    return partial(advance, flight.run, session.open_memory(), tier, digest_wanted)


def _count_quantum(preset: str, quantum_ms: float) -> None:
    instruments().quantum_ended(preset, quantum_ms)


def _count_block(preset: str, record: BlockRecord) -> None:
    found = instruments()
    found.block_generated(preset, record.generate_ms)
    if record.quality.degraded:
        found.block_degraded(preset)
    if record.late_ms > 0:
        found.period_missed(preset)
    if record.releases_skipped:
        found.releases_skipped(preset, record.releases_skipped)
