"""Draining: nodes that take no sessions, and the one task that moves theirs elsewhere.

`services.placement.drain` decides; here are its record, its looks at the directory and its moves,
which are moves like any other: the same admission, tickets and verification.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from services.placement import drain_table, move_table
from services.placement import drain_values as dv
from services.placement import events as ev
from services.placement.drain import Drain, Stage
from services.placement.drain_record import DrainRecord, DrainReport
from services.placement.drain_view import OpenMove, make_view, why_not
from services.placement.open_moves import OpenMoves
from services.placement.phases import Goal, MovePhase
from services.placement.records import MoveEntry
from services.placement.runtime import Runtime
from services.placement.values import Failure
from worldline.errors import WorldlineError

_log = structlog.get_logger(__name__)

#: As whom admission knows it.
CLIENT_ID = "placement-drain"
#: Sessions open, close and change by themselves without a word to us: looked at this often.
LOOK_S = 0.5
#: No two looks are closer: a busy fleet has many moves that are not ours.
_LOOK_MIN_S = 0.01
#: A session that could not be asked for is looked at again after this.
_AGAIN_MS = 200.0
#: A bug in the task is met by beginning anew from the records, this often.
_REVIVALS_MAX = 10
_REVIVAL_S = 1.0

_MOVABLE_BACK = frozenset({MovePhase.REQUESTED, MovePhase.ADMITTED})
_WIRED = frozenset({MovePhase.RESERVED, MovePhase.FROZEN})
_SENT = frozenset(
    {MovePhase.STAGED, MovePhase.VERIFIED, MovePhase.ATTACHED, MovePhase.COMMITTED, MovePhase.DONE}
)


class Drains:
    """Every drain of this directory; its nodes are one demand."""

    def __init__(self, runtime: Runtime, moves: OpenMoves, deadline_s: float) -> None:
        """`deadline_s` is for drains that nobody gave one."""
        self._runtime = runtime
        self._moves = moves
        self._deadline_s = deadline_s
        self._records: dict[str, DrainRecord] = {}
        self._drain = Drain()
        #: What the task has not taken yet.
        self._events: list[dv.Event] = []
        self._move_ids: dict[str, str] = {}
        self._touched = asyncio.Event()
        self._running = False
        self._stopping = False
        self._changed = asyncio.Condition()
        self._process = secrets.token_hex(4)
        self._version = 0
        #: What watchers were told last.
        self._told: object = None
        moves.on_change(self._touched.set)

    # --- start and end ---

    async def start(self) -> None:
        """Go on with what a restart left: before anything may go to the nodes again."""
        for record in await self._runtime.directory.do(drain_table.all_drains):
            self._records[record.node_id] = record
            self._runtime.fleet.cordon(record.node_id)
        self._order(self._under_way())

    def stop(self) -> None:
        """Ask for nothing more; the records stay, and the next start goes on with them."""
        self._stopping = True
        self._touched.set()
        self._runtime.owner.start(self._notify(), "drain watchers")

    # --- what operators ask for ---

    async def drain(self, node_ids: Sequence[str], deadline_ms: int) -> tuple[DrainReport, ...]:
        """Drain these nodes; those that are being drained get another deadline.

        Raises:
            NotFound: no such node, and none is drained. Unavailable: placement is stopping.
        """
        self._runtime.refuse_when_stopping()
        for node_id in node_ids:
            self._runtime.fleet.node(node_id)
        # A caller that goes away half-way leaves a drain, or none.
        work = self._begin(node_ids, deadline_ms / 1e3 or self._deadline_s)
        await asyncio.shield(self._runtime.owner.start(work, "begin drain"))
        return self.reports(node_ids)

    async def _begin(self, node_ids: Sequence[str], lasts_s: float) -> None:
        now_s = time.time()
        ordered: list[DrainRecord] = []
        for node_id in dict.fromkeys(node_ids):
            known = self._records.get(node_id)
            began_s, moved = now_s, 0
            if known is not None and known.state is dv.DrainState.DRAINING:
                began_s, moved = known.began_unix_s, known.moved
            ordered.append(
                DrainRecord(node_id, dv.DrainState.DRAINING, began_s, now_s + lasts_s, moved=moved)
            )
        for one in ordered:
            # Whoever looks for a target from now on finds it closed; who came before is seen.
            self._runtime.fleet.cordon(one.node_id)
        before = {one.node_id: self._records.get(one.node_id) for one in ordered}
        self._records |= {one.node_id: one for one in ordered}
        try:
            await self._runtime.directory.do(drain_table.put_drains, ordered)
        except BaseException:
            self._restore(before)
            raise
        _log.info("drain.ordered", node_ids=[one.node_id for one in ordered], deadline_s=lasts_s)
        self._order(ordered)
        await self._notify()

    async def undrain(self, node_ids: Sequence[str]) -> tuple[str, ...]:
        """Let sessions come again; which of the nodes were drained.

        Raises:
            NotFound: no such node.
        """
        for node_id in node_ids:
            self._runtime.fleet.node(node_id)
        drained = tuple(one for one in dict.fromkeys(node_ids) if one in self._records)
        await asyncio.shield(self._runtime.owner.start(self._end(drained), "undrain"))
        return drained

    async def _end(self, node_ids: Sequence[str]) -> None:
        # First, so that nothing is written of them behind their end.
        before = {one: self._records.pop(one) for one in node_ids if one in self._records}
        try:
            await self._runtime.directory.do(drain_table.drop_drains, node_ids)
        except BaseException:
            self._records = before | self._records
            raise
        for node_id in node_ids:
            self._runtime.fleet.uncordon(node_id)
            self._events.append(dv.Dropped(node_id))
        _log.info("drain.undrained", node_ids=node_ids)
        self._touched.set()
        await self._notify()

    def reports(self, node_ids: Sequence[str] = ()) -> tuple[DrainReport, ...]:
        """How far the drains of these nodes are, or of all, by name."""
        now = asyncio.get_running_loop().time()
        return tuple(
            self._report(record, now)
            for node_id, record in sorted(self._records.items())
            if not node_ids or node_id in node_ids
        )

    def state_of(self, node_id: str) -> str:
        """The state of a node's drain; empty where it takes sessions."""
        record = self._records.get(node_id)
        return "" if record is None else record.state.value

    @property
    def version(self) -> str:
        """Of what `reports` says."""
        return f"{self._process}-{self._version}"

    async def until_changed(self, seen: str, wait_s: float) -> None:
        """Wait until the version is another than `seen`, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.version != seen or self._stopping)

    # --- the task ---

    def _order(self, records: Sequence[DrainRecord]) -> None:
        """Have the task take these drains up, and run."""
        now_s, now = time.time(), asyncio.get_running_loop().time()
        self._events += [
            dv.Ordered(one.node_id, now + one.remaining_s(now_s), one.moved) for one in records
        ]
        self._touched.set()
        if records and not self._running:
            self._running = True
            self._runtime.owner.start(self._supervise(), "drain")

    def _under_way(self) -> list[DrainRecord]:
        state = dv.DrainState.DRAINING
        return [one for one in self._records.values() if one.state is state]

    async def _supervise(self) -> None:
        """Run until nothing is left to drain; a bug is met as a restart would be."""
        try:
            for _ in range(_REVIVALS_MAX):
                try:
                    await self._run()
                    return
                except Exception:
                    _log.exception("drain.task_failed")
                # Its moves go on by themselves, and are waited for as anybody's.
                self._drain, self._move_ids, self._events = Drain(), {}, []
                await asyncio.sleep(_REVIVAL_S)
                self._order(self._under_way())
            for one in self._under_way():
                await self._conclude(dv.Conclude(one.node_id, dv.DrainState.INCOMPLETE))
        finally:
            self._running = False

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._touched.clear()
            await self._take_events()
            await self._take_flights()
            await self._take(dv.Looked(await self._look()))
            await self._notify()
            if not self._drain.node_ids and not self._drain.flights and not self._events:
                return
            await asyncio.sleep(_LOOK_MIN_S)
            wake_s = min(self._drain.wake_s(loop.time()), loop.time() + LOOK_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(wake_s):
                    await self._touched.wait()

    async def _take_events(self) -> None:
        while self._events:
            await self._take(self._events.pop(0))

    async def _look(self) -> dv.View:
        node_ids = self._drain.node_ids
        runtime = self._runtime
        sessions = await runtime.directory.do(drain_table.sessions_on, sorted(node_ids))
        shortlist = await runtime.shortlist()
        moves = [OpenMove(task.entry.move, task.context) for task in self._moves.tasks()]
        now = asyncio.get_running_loop().time()
        return make_view(sessions, moves, node_ids, runtime.fleet, shortlist, now)

    async def _take(self, event: dv.Event) -> None:
        decision = self._drain.take(event, asyncio.get_running_loop().time())
        _log.debug("drain.event", reason=decision.reason)
        asks = [one for one in decision.actions if isinstance(one, dv.Ask)]
        for action in decision.actions:
            if isinstance(action, dv.Withdraw):
                self._withdraw(action)
            elif isinstance(action, dv.Conclude):
                await self._conclude(action)
        for answer in await asyncio.gather(*map(self._ask, asks)):
            if answer is not None:
                self._touched.set()
                await self._take(answer)

    # --- its moves ---

    async def _ask(self, ask: dv.Ask) -> dv.Event | None:
        """Begin a move; the event that ends it where it has ended already."""
        session_id = ask.session_id
        try:
            entry = await self._runtime.begin_move(
                session_id,
                ask.target_node_id,
                "",
                Goal.COMMIT,
                CLIENT_ID,
                bulk_wait_ms=dv.BULK_WAIT_MS,
            )
        except WorldlineError as error:
            # It closed, moves or was suspended by itself: the next look says.
            return dv.Rejected(session_id, dv.Why(error.reason, error.message, _AGAIN_MS))
        except sqlite3.Error as error:
            return dv.Failed(session_id, dv.Why("DIRECTORY_FAILED", str(error)))
        if entry.move.phase.terminal:
            return _ended(session_id, entry)
        self._move_ids[session_id] = entry.move.move_id
        return None

    def _withdraw(self, action: dv.Withdraw) -> None:
        task = self._moves.get(self._move_ids.get(action.session_id, ""))
        # One that has just got its wire goes on.
        if task is not None and task.entry.move.phase in _MOVABLE_BACK:
            failure = Failure("Conflict", action.why.reason, action.why.message)
            task.post(ev.RollbackAsked(failure))

    async def _take_flights(self) -> None:
        """What became of the moves since the last time."""
        for session_id, flight in self._drain.flights.items():
            move_id = self._move_ids[session_id]
            task = self._moves.get(move_id)
            if task is None:
                entry = await self._runtime.directory.do(move_table.get_move, move_id)
                del self._move_ids[session_id]
                await self._take(_ended(session_id, entry))
                await self._note_moved(flight.move.source_node_id)
            elif task.entry.move.phase in _SENT and flight.stage is not Stage.SENT:
                await self._take(dv.Sent(session_id))
            elif task.entry.move.phase in _WIRED and flight.stage is Stage.ASKED:
                await self._take(dv.Wired(session_id))

    async def _note_moved(self, node_id: str) -> None:
        record = self._records.get(node_id)
        if record is not None and record.moved != self._drain.moved[node_id]:
            await self._write(replace(record, moved=self._drain.moved[node_id]))

    async def _conclude(self, end: dv.Conclude) -> None:
        record = self._records.get(end.node_id)
        if record is None or record.state is not dv.DrainState.DRAINING:
            return  # undrained meanwhile
        left = self._drain.left(end.node_id, asyncio.get_running_loop().time())
        _log.info("drain.ended", node_id=end.node_id, state=end.state.value, left=len(left))
        await self._write(replace(record, state=end.state, ended_unix_s=time.time(), left=left))

    async def _write(self, record: DrainRecord) -> None:
        self._records[record.node_id] = record
        await self._runtime.directory.do(drain_table.put_drains, [record])

    # --- watchers ---

    def _report(self, record: DrainRecord, now: float) -> DrainReport:
        under_way = record.state is dv.DrainState.DRAINING
        return DrainReport(
            record=record,
            left=self._drain.left(record.node_id, now) if under_way else record.left,
            move_ids=self._move_ids if under_way else {},
            rounds_left=self._drain.rounds_left if under_way else 0,
        )

    def _restore(self, before: dict[str, DrainRecord | None]) -> None:
        for node_id, record in before.items():
            if record is None:
                self._records.pop(node_id, None)
                self._runtime.fleet.uncordon(node_id)
            else:
                self._records[node_id] = record

    async def _notify(self) -> None:
        """Tell whoever watches, where more has changed than the time."""
        news = [one.gist for one in self.reports()]
        if news != self._told:
            self._told = news
            self._version += 1
        async with self._changed:
            self._changed.notify_all()


def _ended(session_id: str, entry: MoveEntry | None) -> dv.Event:
    """How a move that is over ended, as the drain is told."""
    if entry is None or not entry.move.phase.terminal:
        # Its end could not be recorded; the next start ends it again.
        return dv.Failed(session_id, dv.Why("DIRECTORY_FAILED", "its end is not on record"))
    move = entry.move
    if move.phase is MovePhase.DONE:
        return dv.Committed(session_id)
    if move.phase is MovePhase.REJECTED and move.verdict is not None:
        return dv.Rejected(session_id, why_not(move.verdict))
    failure = move.failure
    if failure is None:
        return dv.Failed(session_id, dv.Why("UNKNOWN", "it was rolled back"))
    return dv.Failed(session_id, dv.Why(failure.reason, failure.message))
