"""Generation: the loop that gives quanta to worlds, one at a time, as the schedule says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import structlog

from services.engine import events as ev
from services.engine.chores import Chores
from services.engine.claimbook import ClaimBook
from services.engine.claims import bulk_waits, wave_member
from services.engine.flight import Flight
from services.engine.lease import Lease
from services.engine.outbox import BlockRecord
from services.engine.profile import Profiles
from services.engine.quality import Quality, choose_quality, full_quality, replayed_quality
from services.engine.quantum import Quantum, advance
from services.engine.schedule import Choice, Chooser, Claim, Guard, Idle, keeps, pick, wave_floors
from services.engine.session import Session
from services.engine.signal import Signal, wait_for_change
from services.engine.worker import Worker
from services.engine.world import NO_FRAMES, quanta_of
from worldline.numa import Binding
from worldline.telemetry import instruments

_log = structlog.get_logger(__name__)

#: Looks again this often even when nothing woke it: a lease can end without an event.
_IDLE_S = 1.0
#: Metrics are told of a block so long after the next one was begun.
_COUNT_AFTER_S = 0.001
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
        chores: Chores | None = None,
    ) -> None:
        self._sessions = sessions
        self._worker = worker
        self._profiles = profiles
        self._lease = lease
        self._book = ClaimBook(GUARD)
        self._degrade_for_bulk = degrade_for_bulk
        self._choose = choose
        self._chores = Chores(worker) if chores is None else chores
        #: What the metrics are still to be told.
        self._uncounted: list[Callable[[], None]] = []
        #: Notify after anything that may make a world runnable.
        self.wake = Signal()

    async def run(self) -> None:
        """Until cancelled."""
        with self._chores.attended(self.wake):
            while True:
                token = self.wake.token()
                now = time.monotonic()
                self._drop_disowned(now)
                until = await self._turn(now)
                if until > now:
                    self._count_done()
                    await wait_for_change(token, until - now)

    async def _turn(self, now: float) -> float:
        """Give away what is next; returns when to ask again at the latest."""
        claims = self._claims(now)
        floors = wave_floors(self._wave_members())
        choice = self._choose(claims, now, guard=GUARD, floors=floors)
        session = self._chosen(choice)
        if session is not None and not self._allowed(session, now):
            # No world runs without a lease; what the engine does for itself needs none.
            choice, session = self._choose(self._chores.claims(now), now, guard=GUARD), None
        if not isinstance(choice, Choice):
            return min(_IDLE_S + now, choice.until, self._chores.hard_at())
        if session is None:
            await self._chores.advance(choice.session_id)
        else:
            await self._quanta(session, choice.claim, claims)
        return now

    def _chosen(self, choice: Choice | Idle) -> Session | None:
        """Whose world it is, where it is one's."""
        return self._sessions.get(choice.session_id) if isinstance(choice, Choice) else None

    def _count_done(self) -> None:
        """Tell the metrics of what is done and not told yet."""
        uncounted, self._uncounted = self._uncounted, []
        for count in uncounted:
            count()

    def _drop_disowned(self, now: float) -> None:
        """End worlds that lost their owner in mid-block; here no quantum of theirs is running."""
        for session in self._here():
            ending = session.world.ending
            if session.world.disowned and ending is not None and ending.error is not None:
                session.apply(ev.BlockFailed(ending.error), now)

    def _here(self) -> list[Session]:
        """All sessions at this moment: the event loop may add one while the worker looks."""
        return list(self._sessions.values())

    def _claims(self, now: float, besides: Session | None = None) -> list[Claim]:
        """What is claimed now; `besides`: by others than that session."""
        gives = self._gives()
        found = (self._claim(each, now, gives) for each in self._here() if each is not besides)
        claims = [claim for claim in found if claim is not None]
        return claims + self._chores.claims(now)

    def _claim(self, session: Session, now: float, gives: bool) -> Claim | None:
        if session.renewals_missed > 0:
            # In doubt it waits: where the directory does not name it, its slot may be another's.
            return None
        return self._book.claim(session, self._profiles.expected(session.shape), now, gives=gives)

    def _gives(self) -> bool:
        """Whether bulk waits that worlds with a floor go down to it for."""
        return self._degrade_for_bulk and any(
            session.room and bulk_waits(session.world, session.contract) for session in self._here()
        )

    def _wave_members(self) -> Iterator[tuple[str, int]]:
        for session in self._here():
            member = wave_member(session.world, session.contract)
            if member is not None:
                yield member

    def _allowed(self, session: Session, now: float, last_s: float = 0.0) -> bool:
        """The lease must outlast the quantum; one longer than half a lease could never start.

        `last_s` is what one took that its row does not know of yet.
        """
        lease, expected = self._lease(), self._profiles.expected(session.shape)
        longest_s = max(expected.step_s, expected.closing_s, last_s)
        return lease.holds(now, min(longest_s, lease.lease_s / 2))

    async def _quanta(self, session: Session, claim: Claim, claims: list[Claim]) -> None:
        """A quantum, and those of its block that follow while there is nothing to choose.

        Then the worker goes on by itself: two threads that wake each other take longer than all
        that is decided here.
        """
        flight = session.flight
        if flight is None or not session.world.mid_block:
            flight = self._begin(session, claim, claims)
        advanced, stays = partial(_advanced, session, flight), partial(self._stays, session)
        bound = self._profiles.binding
        passing = self._worker.submit(partial(flight.fly, advanced, stays))
        # While it is computed nobody waits for what metrics take, once it has begun: the worker's
        # thread wakes when this one has nothing more to do.
        asyncio.get_running_loop().call_later(_COUNT_AFTER_S, self._count_done)
        passed = await passing
        for quantum in passed:
            self._reckon(session, quantum, bound)
        done = passed[-1]
        if done.over:
            # Nothing here may keep the state's views alive once the world ends with this block.
            session.flight = None
            quality, spent_ms = flight.quality, flight.spent_ms
            del flight, advanced
            self._block_over(session, done, quality, spent_ms)

    def _stays(self, session: Session, done: Quantum) -> bool:
        """Whether the world in mid-block gets the next quantum too; asked at the boundary between
        the two, in the worker's thread.

        The decision is made then and from nothing older, so no quantum starts on a stale one: what
        the event loop did before is seen, be it a freeze, an action, a lost world or lease, and so
        is a release that has passed. `run` waits meanwhile, so that nobody else decides. What the
        loop may change are references to values that do not change themselves; each is read once.
        Anything but going on is the loop's to choose, and all that measured times decide.
        """
        now = time.monotonic()
        if self._worker.should_yield or not self._allowed(session, now, done.elapsed_ms / 1e3):
            return False
        if session.renewals_missed or any(each.world.disowned for each in self._here()):
            return False
        others = self._claims(now, besides=session)
        if not others:
            return True
        own = self._claim(session, now, self._gives())
        if own is None or self._choose is not pick:
            return False
        floors = wave_floors(self._wave_members())
        return keeps(session.session_id, [*others, own], now, guard=GUARD, floors=floors)

    def _reckon(self, session: Session, done: Quantum, bound: Binding) -> None:
        if done.error is None:
            if self._profiles.binding is bound:
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


def _advanced(session: Session, flight: Flight) -> Quantum:
    """The next quantum, in the worker's thread; what its stream wants is asked each time."""
    stream = session.stream
    digest_wanted = stream is not None and stream.digests_wanted
    tier = session.contract.decode_tier
    return advance(flight.run, session.open_memory(), tier, digest_wanted)


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
