"""Runtime of placement: owns the tasks of all moves and the leases, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from services.placement import (
    changes,
    move_table,
    node_table,
    session_table,
    suspension_table,
)
from services.placement import events as ev
from services.placement.beginning import busy, check_movable, new_move, same_request
from services.placement.context import MoveContext
from services.placement.directory import Directory
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.move_task import MoveTask, Tools
from services.placement.move_trace import describe_end
from services.placement.open_moves import OpenMoves
from services.placement.origins import Origins
from services.placement.owner import TaskOwner
from services.placement.phases import Goal, MovePhase
from services.placement.records import MoveEntry, SessionRecord
from services.placement.recovery import resume
from services.placement.shortlist import Shortlist
from services.placement.targets import Target
from services.placement.values import Failure
from worldline.errors import NotFound
from worldline.telemetry import instruments, span

_log = structlog.get_logger(__name__)

#: Ended moves whose manifests are kept for a client that asks again; 100 kB each at most.
_RECENT_MAX = 16
#: A bug in a move's task is met by recovering the move, this often.
_REVIVALS_MAX = 3
#: A collector of metrics waits no longer for a count.
_COUNT_S = 1.0

SHUTTING_DOWN = Failure(
    kind="Unavailable",
    reason="PLACEMENT_STOPPING",
    message="placement is shutting down; the source stays authoritative, ask again",
)


class Runtime:
    """Everything of placement that runs."""

    def __init__(
        self,
        directory: Directory,
        fleet: Fleet,
        tools: Tools,
        moves: OpenMoves,
        owner: TaskOwner,
    ) -> None:
        """`moves` and `owner` are for others to look at and to use; they are this runtime's."""
        self.directory = directory
        self.fleet = fleet
        self.owner = owner
        #: Sessions that are closed on record and whose engines have yet to let go of their slots.
        self.closing: Counter[str] = Counter()
        self.origins = Origins()
        self._shortlist = Shortlist(fleet)
        #: Up to which of the directory's changes the shortlist has followed.
        self._version = 0
        self._tools = tools
        self._moves = moves
        self._recent: OrderedDict[str, MoveTask] = OrderedDict()
        self._stopping = False
        self._on_stop: list[Callable[[], None]] = []
        self._on_reap: list[Callable[[], Awaitable[None]]] = []
        self._reaper: asyncio.Task[None] | None = None

    # --- start and end ---

    async def start(self) -> None:
        """Load the fleet, resolve what a crash left open, begin to watch leases."""
        now = asyncio.get_running_loop().time()
        for node in await self.directory.do(node_table.all_nodes):
            self.fleet.put_node(node, now)
        for engine in await self.directory.do(node_table.all_engines):
            self.fleet.put_engine(engine, now)
        # All of them, this once: the first move is not to wait for that.
        await self._follow()
        for entry in await self.directory.do(move_table.open_moves):
            await self._recover(entry)
        self._reaper = self.owner.start(self._reap(), "lease reaper")

    async def _recover(self, entry: MoveEntry) -> None:
        session = await self.session(entry.move.session_id)
        resumption = resume(entry.move)
        _log.warning("move.recovered", move_id=entry.move.move_id, phase=entry.move.phase.name)
        task = MoveTask(self._tools, entry.with_move(resumption.move), MoveContext(session=session))
        self._run(task, resumption.actions, resumption.events)

    def on_stop(self, give_up: Callable[[], None]) -> None:
        """Call this when the end begins, before the owner's tasks are waited for."""
        self._on_stop.append(give_up)

    def on_reap(self, reap: Callable[[], Awaitable[None]]) -> None:
        """Call this, too, whenever leases are looked at: each third of an engine's."""
        self._on_reap.append(reap)

    async def stop(self, grace_s: float) -> None:
        """Bring every move to a safe point within `grace_s`; the rest is recovered at next start.

        Before its commit a move is rolled back, after it it goes on.
        """
        self._stopping = True
        if self._reaper is not None:
            self._reaper.cancel()
        for task in self._moves.tasks():
            task.post(ev.RollbackAsked(SHUTTING_DOWN))
        for give_up in self._on_stop:
            give_up()
        if not await self.owner.wait(grace_s):
            _log.warning("moves.left_durable", count=len(self._moves))
        await self.owner.close()

    async def _reap(self) -> None:
        loop, every_s = asyncio.get_running_loop(), self.fleet.engine_lease_ms / 3e3
        while True:
            due_s = loop.time() + every_s
            await asyncio.sleep(every_s)
            now = loop.time()
            with contextlib.suppress(sqlite3.Error):
                await self.reap(now, late_s=now - due_s)
                for reap in self._on_reap:
                    await reap()

    async def reap(self, now: float, *, late_s: float = 0.0) -> None:
        """Mark sessions LOST whose engine's lease ran out or whose process was replaced.

        Suspended ones too, where a replaced mover had their state in its memory. `late_s` is for
        how long this process heard nobody because it stood still itself: stopped, or starved.
        """
        self.fleet.excuse(late_s, now)
        lost = await self.directory.do(session_table.lose_strays)
        lost += await self.directory.do(suspension_table.lose_parked)
        for engine_id, engine in sorted(self.fleet.engines.items()):
            if not self.fleet.engine_alive(engine_id, now):
                lost += await self.directory.do(
                    session_table.lose_sessions_of, engine_id, engine.incarnation
                )
        if lost:
            _log.warning("sessions.lost", count=lost)
            instruments().reaped("session", lost)

    # --- for the metrics, from any thread ---

    def session_counts(self) -> dict[tuple[str, ...], float]:
        """Sessions that are not closed, by state, as the directory's own thread counts them.

        Raises:
            TimeoutError: the directory is busy for longer than a collector may wait.
        """
        counted = self.directory.ask(session_table.count_by_state).result(_COUNT_S)
        return {(state,): count for state, count in counted.items()}

    def leases(self) -> dict[tuple[str, ...], float]:
        """Nodes and engines whose lease holds."""
        nodes, engines = self.fleet.leases_in_force(time.monotonic())
        return {("node",): nodes, ("engine",): engines}

    # --- moves ---

    def move_task(self, move_id: str) -> MoveTask | None:
        """The task of a move that is under way."""
        return self._moves.get(move_id)

    def recent_task(self, move_id: str) -> MoveTask | None:
        """The task of a move that is under way or ended lately."""
        return self._moves.get(move_id) or self._recent.get(move_id)

    def open_move_tasks(self) -> tuple[Move, ...]:
        """The moves under way, by id."""
        return self._moves.moves()

    async def session(self, session_id: str) -> SessionRecord:
        """The session of that id, closed ones too.

        Raises:
            NotFound: there is none.
        """
        found = await self.directory.do(session_table.get_session, session_id)
        if found is None:
            raise NotFound(
                f"session {session_id} is unknown", reason="SESSION_UNKNOWN", field="session_id"
            )
        return found

    async def sessions(self) -> tuple[SessionRecord, ...]:
        """Every session that is not closed."""
        return tuple(await self.directory.do(session_table.sessions_now))

    async def begin_move(
        self,
        session_id: str,
        target_node_id: str,
        idempotency_key: str,
        goal: Goal,
        client_id: str,
        saves_ms: float = 0.0,
        bulk_wait_ms: float = 0.0,
    ) -> MoveEntry:
        """A new move, on its way to `goal`; or one born rejected; or the earlier one of this key.

        `saves_ms` is what the move is worth in milliseconds of what a move costs; 0: it is ordered,
        whatever it saves. With `bulk_wait_ms` nobody waits for it: it may wait for its wire for so
        long, and others go first.

        A caller that is cancelled half-way leaves a move that somebody drives, or none.

        Raises:
            NotFound: no such session or node. InvalidInput: a move to itself. Conflict: another
                move is under way, or the session cannot move.
        """
        work = self._begin_move(
            session_id, target_node_id, idempotency_key, goal, client_id, saves_ms, bulk_wait_ms
        )
        return await asyncio.shield(self.owner.start(work, f"begin move of {session_id}"))

    async def _begin_move(
        self,
        session_id: str,
        target_node_id: str,
        idempotency_key: str,
        goal: Goal,
        client_id: str,
        saves_ms: float,
        bulk_wait_ms: float,
    ) -> MoveEntry:
        session = await self.session(session_id)
        if idempotency_key:
            earlier = await self.directory.do(move_table.move_by_key, idempotency_key)
            if earlier is not None:
                return same_request(earlier, session_id)
        self.refuse_when_stopping()
        check_movable(session, target_node_id, self.fleet)
        entry, targets = await self._new_entry(session, target_node_id, idempotency_key, goal)
        if entry.move.phase is MovePhase.REJECTED:
            return await self._born_rejected(entry)
        made = await self.directory.do(move_table.insert_move, entry)
        if isinstance(made, move_table.Busy):
            raise busy(session_id, made.state)
        if made is entry:
            opened_in = self.origins.of(session_id)
            context = MoveContext(
                session, client_id, targets, saves_ms, bulk_wait_ms, opened_in=opened_in
            )
            self._run(MoveTask(self._tools, entry, context), (), (ev.Begin(),))
            return entry
        return same_request(made, session_id)

    def refuse_when_stopping(self) -> None:
        """Nothing new begins once the end has begun.

        Raises:
            Unavailable: it has.
        """
        if self._stopping:
            raise SHUTTING_DOWN.error()

    async def _new_entry(
        self, session: SessionRecord, target_node_id: str, idempotency_key: str, goal: Goal
    ) -> tuple[MoveEntry, tuple[Target, ...]]:
        await self._follow()
        now = asyncio.get_running_loop().time()
        move, targets = new_move(
            f"move-{secrets.token_hex(12)}",
            session,
            target_node_id,
            goal,
            self.fleet,
            self._shortlist,
            now,
        )
        deadline_s = now + self._tools.limits.requested_s
        move = replace(move, deadline_s=deadline_s)
        return MoveEntry(move=move, idempotency_key=idempotency_key), targets

    async def shortlist(self) -> Shortlist:
        """Every engine that may be gone to, as the directory has it now."""
        await self._follow()
        return self._shortlist

    async def _follow(self) -> None:
        """Have the shortlist know every session and every open move as the directory has it now."""
        news = await self.directory.do(changes.changes_since, self._version)
        if news.version > self._version:
            # Else another caller, who asked later, has brought it further than that.
            self._shortlist.follow(news)
            self._version = news.version

    async def _born_rejected(self, entry: MoveEntry) -> MoveEntry:
        """Record the reject; with a trace of its own, so that it can be looked at too."""
        move = entry.move
        links = (self.origins.of(move.session_id),)
        with span("move", links=links, move_id=move.move_id, session_id=move.session_id) as active:
            outcome, reason = move_table.outcome_of(entry)
            describe_end(entry, active)
            traced = replace(entry, trace_id=active.trace_id)
        made = await self.directory.do(move_table.insert_move, traced)
        if isinstance(made, move_table.Busy):
            raise busy(move.session_id, made.state)
        if made is traced:
            instruments().move_ended(outcome, reason)
        return made

    def _run(
        self, task: MoveTask, actions: tuple[ev.Action, ...], events: tuple[ev.Event, ...]
    ) -> None:
        move_id = task.entry.move.move_id
        task.on_phase = self._moves.changed
        self._moves.add(task)
        self.owner.start(self._supervise(task, actions, events), f"move {move_id}")

    async def _supervise(
        self, task: MoveTask, actions: tuple[ev.Action, ...], events: tuple[ev.Event, ...]
    ) -> None:
        """Run a move to its end; a bug on the way is met as a crash would be, by recovery."""
        move_id = task.entry.move.move_id
        try:
            for _ in range(_REVIVALS_MAX):
                try:
                    await task.run(actions, events)
                    return
                except Exception:
                    _log.exception("move.task_failed", move_id=move_id)
                entry = await self.directory.do(move_table.get_move, move_id)
                if entry is None or entry.move.phase.terminal:
                    return
                resumption = resume(entry.move)
                actions, events = resumption.actions, resumption.events
                task.revive(entry.with_move(resumption.move))
        finally:
            self._moves.remove(move_id)
            self._recent[move_id] = task
            while len(self._recent) > _RECENT_MAX:
                self._recent.popitem(last=False)
            await task.end()
