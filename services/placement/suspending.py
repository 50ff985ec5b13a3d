"""Suspending: what clients ask for, and the owner of every suspend and resume under way."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from dataclasses import replace

import structlog

from services.placement import suspension_table
from services.placement.beginning import busy
from services.placement.opening import Sessions
from services.placement.records import SessionRecord, SessionState
from services.placement.resuming import choose_engine_to_resume, not_resumable
from services.placement.runtime import SHUTTING_DOWN, Runtime
from services.placement.suspension import Begin, Event, GiveUp, Suspension, recovered
from services.placement.suspension_record import SuspensionEntry
from services.placement.suspension_steps import SuspensionContext, SuspensionSteps
from services.placement.suspension_task import SuspensionTask
from services.placement.values import Failure, Party
from worldline.errors import (
    Conflict,
    DeadlineExceeded,
    InvariantBroken,
    NotFound,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.park import ParkKind, SuspensionPhase, SuspensionVerb
from worldline.verdict import Verdict

_log = structlog.get_logger(__name__)

#: Above the sum of what the steps may take: only a bug in them lets this run out.
_WAIT_S = 900.0
RESTARTED = Failure(
    kind="Unavailable",
    reason="PLACEMENT_RESTARTED",
    message="placement restarted before it was on record, and it was undone",
)

BROKEN = Failure(
    kind="InvariantBroken",
    reason="INVARIANT_BROKEN",
    message="a bug of placement ended it; it was undone, and its log says where",
)
#: A bug in a task is met by recovering what it did, this often.
_REVIVALS_MAX = 3

#: What a client gets: the record, the verdict that there is no room, or None: nothing to do.
Resumed = SuspensionEntry | Verdict | None


class Suspensions:
    """Suspends and resumes sessions."""

    def __init__(self, runtime: Runtime, sessions: Sessions, steps: SuspensionSteps) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._steps = steps
        self._tasks: dict[str, SuspensionTask] = {}
        #: By session; one at a time each.
        self._by_session: dict[str, SuspensionTask] = {}
        self._beginning = asyncio.Lock()

    async def start(self) -> None:
        """Go on with what a crash left open."""
        for entry in await self._runtime.directory.do(suspension_table.open_suspensions):
            session = await self._runtime.session(entry.suspension.session_id)
            resumed, events = recovered(entry.suspension, RESTARTED)
            _log.warning("suspension.recovered", suspension_id=resumed.suspension_id)
            self._run(entry.with_suspension(resumed), session, events)

    def stop(self) -> None:
        """Give up whatever is not on record; its tasks are the runtime's to wait for."""
        for task in self._tasks.values():
            task.post(GiveUp(SHUTTING_DOWN))

    def under_way(self) -> frozenset[str]:
        """Sessions in the middle of a suspend or a resume, obligations included."""
        return frozenset(self._by_session)

    def park_ids(self) -> frozenset[str]:
        """The parked copies that those make, read or drop."""
        return frozenset(task.entry.suspension.park_id for task in self._tasks.values())

    async def suspend(self, session_id: str, kind: ParkKind, key: str) -> SuspensionEntry | None:
        """Park a live session and free its slot; None where it is suspended already.

        Goes on when the caller goes away; asking again with the same key joins it.

        Raises:
            NotFound: no such session. Conflict: it is in a move, or does not run.
            WorldlineError: why it was undone; the world plays on.
        """
        earlier = await self._earlier(key, session_id, SuspensionVerb.SUSPEND)
        if earlier is not None:
            return await self._outcome(earlier)
        while True:
            await self._let_end(session_id, SuspensionVerb.SUSPEND)
            session = await self._runtime.session(session_id)
            if session.state is SessionState.SUSPENDED:
                return None
            if session.state not in (SessionState.LIVE, SessionState.SUSPENDING):
                raise busy(session_id, session.state.value)
            node = self._runtime.fleet.node(session.node_id)
            # The process that has the world, which may not be the one that has the name now.
            party = Party(session.owner, session.owner_incarnation, node.node_id, node.incarnation)
            suspension = self._new(session, SuspensionVerb.SUSPEND, kind, _new_id("park"), party)
            task = await self._begin(replace(suspension, slot=session.slot), session, key)
            if task is not None:
                await self._ended(task)
                return _succeeded(task.entry)

    async def resume(self, session_id: str, key: str, client_id: str) -> Resumed:
        """Let a suspended session go on, on the node that has its state; None where it is live.

        Raises:
            NotFound: no such session. Conflict: it is in a move, lost, or closed.
            Unavailable: its node is silent, or has no engine now.
            IntegrityError: what came back is not what was parked; it stays suspended.
            WorldlineError: why it was undone; it stays suspended.
        """
        earlier = await self._earlier(key, session_id, SuspensionVerb.RESUME)
        if earlier is not None:
            return await self._outcome(earlier)
        while True:
            await self._let_end(session_id, SuspensionVerb.RESUME)
            session = await self._runtime.session(session_id)
            if session.state is SessionState.LIVE:
                return None
            parked = session.parked
            resumable = session.state in (SessionState.SUSPENDED, SessionState.RESUMING)
            if not resumable or parked is None:
                raise not_resumable(session)
            chosen = choose_engine_to_resume(session, parked, self._runtime.fleet, _now())
            if isinstance(chosen, Verdict):
                return chosen
            party = self._runtime.fleet.party(chosen.engine_id)
            resuming = self._new(session, SuspensionVerb.RESUME, parked.kind, parked.park_id, party)
            suspension = replace(resuming, tier_dropped=chosen.tier_dropped)
            room = self._sessions.room_wish(session, party, client_id)
            async with self._sessions.room.decided(room) as verdict:
                if not verdict.admitted:
                    return verdict
                task = await self._begin(suspension, session, key)
            if task is not None:
                await self._ended(task)
                return _succeeded(task.entry)

    async def entry(self, suspension_id: str) -> SuspensionEntry:
        """The record of one, as the directory has it.

        Raises:
            NotFound: there is none.
        """
        found = await self._runtime.directory.do(suspension_table.get_suspension, suspension_id)
        if found is None:
            raise NotFound(
                f"suspension {suspension_id} is unknown",
                reason="SUSPENSION_UNKNOWN",
                field="suspension_id",
            )
        return found

    # --- one ---------------------------------------------------------------------------------

    def _new(
        self,
        session: SessionRecord,
        verb: SuspensionVerb,
        kind: ParkKind,
        park_id: str,
        party: Party,
    ) -> Suspension:
        return Suspension(
            suspension_id=_new_id(verb.name.lower()),
            session_id=session.session_id,
            verb=verb,
            kind=kind,
            park_id=park_id,
            party=party,
            epoch=session.epoch,
        )

    async def _earlier(
        self, key: str, session_id: str, verb: SuspensionVerb
    ) -> SuspensionEntry | None:
        """The one that an earlier request with this key made."""
        if not key:
            return None
        found = await self._runtime.directory.do(suspension_table.suspension_by_key, key)
        if found is None:
            return None
        if (found.suspension.session_id, found.suspension.verb) != (session_id, verb):
            raise Conflict(
                "the idempotency key was used for another request",
                reason="IDEMPOTENCY_KEY_REUSED",
                field="idempotency_key",
            )
        return found

    async def _let_end(self, session_id: str, verb: SuspensionVerb) -> None:
        """Wait for the one under way: one of the same verb is what the caller wants anyway.

        Raises:
            Conflict: the other verb is under way and not decided yet.
        """
        task = self._by_session.get(session_id)
        if task is None:
            return
        one = task.entry.suspension
        if one.verb is not verb and one.phase is SuspensionPhase.BEGUN:
            raise Conflict(
                f"session {session_id} is in a {one.verb.name.lower()}: wait for its end",
                reason=f"{one.verb.name}_IN_PROGRESS",
                field="session_id",
            )
        await self._ended(task)

    async def _begin(
        self, suspension: Suspension, session: SessionRecord, key: str
    ) -> SuspensionTask | None:
        """A caller that goes away half-way leaves one that somebody drives, or none.

        None where another began while the caller looked: it must look again.
        """
        self._runtime.refuse_when_stopping()
        async with self._beginning:
            if session.session_id in self._by_session:
                return None
            work = self._begin_once(SuspensionEntry(suspension, idempotency_key=key), session)
            name = f"begin {suspension.suspension_id}"
            return await asyncio.shield(self._runtime.owner.start(work, name))

    async def _begin_once(self, entry: SuspensionEntry, session: SessionRecord) -> SuspensionTask:
        one = entry.suspension
        try:
            await self._runtime.directory.do(suspension_table.insert_suspension, entry)
        except suspension_table.Taken as taken:
            raise busy(one.session_id, str(taken)) from None
        except sqlite3.IntegrityError as error:
            raise Conflict(
                "the idempotency key was used at the same time",
                reason="IDEMPOTENCY_KEY_REUSED",
                field="idempotency_key",
            ) from error
        return self._run(entry, session, (Begin(),))

    def _run(
        self, entry: SuspensionEntry, session: SessionRecord, events: tuple[Event, ...]
    ) -> SuspensionTask:
        one = entry.suspension
        context = SuspensionContext(session=session)
        task = SuspensionTask(
            self._runtime.directory,
            entry,
            lambda step, now: self._steps.do(step, now, context),
        )
        self._tasks[one.suspension_id] = task
        self._by_session[one.session_id] = task
        self._runtime.owner.start(self._supervise(task, events), one.suspension_id)
        return task

    async def _supervise(self, task: SuspensionTask, events: tuple[Event, ...]) -> None:
        """Run one to its end; a bug on the way is met as a crash would be, by recovery."""
        one = task.entry.suspension
        try:
            for _ in range(_REVIVALS_MAX):
                try:
                    await task.run(events)
                    return
                except Exception:
                    _log.exception("suspension.task_failed", suspension_id=one.suspension_id)
                entry = await self._runtime.directory.do(
                    suspension_table.get_suspension, one.suspension_id
                )
                if entry is None or entry.suspension.phase.terminal:
                    return
                resumed, events = recovered(entry.suspension, BROKEN)
                task.revive(entry.with_suspension(resumed))
        finally:
            del self._tasks[one.suspension_id]
            del self._by_session[one.session_id]
            task.end()

    async def _ended(self, task: SuspensionTask) -> None:
        try:
            await task.ended(_WAIT_S)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{task.entry.suspension.suspension_id} has not ended; ask GetSuspension"
            ) from None

    async def _outcome(self, entry: SuspensionEntry) -> SuspensionEntry:
        """What became of an earlier one, once it is over."""
        task = self._tasks.get(entry.suspension.suspension_id)
        if task is not None:
            await self._ended(task)
        return _succeeded(await self.entry(entry.suspension.suspension_id))


def _succeeded(entry: SuspensionEntry) -> SuspensionEntry:
    """The entry, if it did what was asked.

    Raises:
        WorldlineError: why it was undone.
    """
    one = entry.suspension
    if one.phase is SuspensionPhase.DONE and not one.lost:
        return entry
    verb = one.verb.name.lower()
    if not one.phase.terminal:
        raise Unavailable(
            f"placement is stopping; the {verb} of session {one.session_id} is "
            f"{one.phase.name.lower()} and ends when it is back",
            reason="PLACEMENT_STOPPING",
        )
    if one.phase is SuspensionPhase.DONE:
        raise Conflict(
            f"session {one.session_id} was on record as resumed when its engine was gone",
            reason="SESSION_LOST",
            field="session_id",
        )
    if one.failure is None:
        raise InvariantBroken(f"{one.suspension_id} is {one.phase.name} without a failure")
    error = one.failure.error()
    if isinstance(error, Unavailable | TransferFailed):
        # An answer, and none to try again by itself: what a peer said to us is not for the client.
        message = f"the {verb} of session {one.session_id} was undone: {error.message}"
        return _raise(Conflict(message, reason=error.reason, field=error.field))
    return _raise(error)


def _raise(error: WorldlineError) -> SuspensionEntry:
    raise error


def _new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _now() -> float:
    return asyncio.get_running_loop().time()
