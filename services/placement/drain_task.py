"""Drain task: carries out what `services.placement.drain` decides, until nothing is left to drain.

Its moves are moves like any other: the same admission, tickets and verification. It looks at the
directory whenever a move of anybody's has begun, gone on or ended, and every now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from typing import Protocol

import structlog

from services.placement import drain_table, move_table
from services.placement import drain_values as dv
from services.placement import events as ev
from services.placement.drain import Drain, Stage
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
#: No two looks are closer, nor closer than one takes: a busy fleet has many moves not of ours.
_LOOK_MIN_S = 0.01
#: A session that could not be asked for is looked at again after this.
_AGAIN_MS = 200.0

_NOT_WIRED = frozenset({MovePhase.REQUESTED, MovePhase.ADMITTED})
_WIRED = frozenset({MovePhase.RESERVED, MovePhase.FROZEN})
_SENT = frozenset(
    {MovePhase.STAGED, MovePhase.VERIFIED, MovePhase.ATTACHED, MovePhase.COMMITTED, MovePhase.DONE}
)


class DrainBook(Protocol):
    """Who keeps the records of drains."""

    async def moved(self, node_id: str, count: int) -> None:
        """So many sessions were moved off that node up to now."""

    async def ended(self, node_id: str, state: dv.DrainState, left: tuple[dv.Left, ...]) -> None:
        """The drain of that node has ended so."""

    async def looked(self) -> None:
        """How drains stand may have changed."""


class DrainTask:
    """`run` is to be a task of somebody who awaits it."""

    def __init__(self, runtime: Runtime, moves: OpenMoves, book: DrainBook) -> None:
        self.drain = Drain()
        self._runtime = runtime
        self._moves = moves
        self._book = book
        #: What has not been taken yet.
        self._events: list[dv.Event] = []
        self._move_ids: dict[str, str] = {}
        self._touched = asyncio.Event()
        self._stopping = False

    @property
    def move_ids(self) -> Mapping[str, str]:
        """The moves under way, by session."""
        return self._move_ids

    def post(self, *events: dv.Event) -> None:
        """Put events in, which are taken in order."""
        self._events += events
        self.touch()

    def touch(self) -> None:
        """Something has changed: look soon."""
        self._touched.set()

    def stop(self) -> None:
        """Ask for nothing more."""
        self._stopping = True
        self.touch()

    async def run(self) -> None:
        """Until nothing is drained and no move of a drain is under way."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            began_s = loop.time()
            self._touched.clear()
            while self._events:
                await self._take(self._events.pop(0))
            await self._take_moves()
            await self._take(dv.Looked(await self._look()))
            await self._book.looked()
            if not self.drain.node_ids and not self.drain.flights and not self._events:
                return
            await asyncio.sleep(max(_LOOK_MIN_S, loop.time() - began_s))
            wake_s = min(self.drain.wake_s(loop.time()), loop.time() + LOOK_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(wake_s):
                    await self._touched.wait()

    async def _look(self) -> dv.View:
        node_ids, runtime = self.drain.node_ids, self._runtime
        sessions = await runtime.directory.do(drain_table.sessions_on, sorted(node_ids))
        shortlist = await runtime.shortlist()
        moves = [OpenMove(task.entry.move, task.context) for task in self._moves.tasks()]
        now = asyncio.get_running_loop().time()
        return make_view(sessions, moves, node_ids, runtime.fleet, shortlist, now)

    async def _take(self, event: dv.Event) -> None:
        now = asyncio.get_running_loop().time()
        decision = self.drain.take(event, now)
        _log.debug("drain.event", reason=decision.reason)
        for action in decision.actions:
            if isinstance(action, dv.Withdraw):
                self._withdraw(action)
            elif isinstance(action, dv.Conclude):
                left = self.drain.left(action.node_id, now)
                await self._book.ended(action.node_id, action.state, left)
        asks = [one for one in decision.actions if isinstance(one, dv.Ask)]
        for answer in await asyncio.gather(*map(self._ask, asks)):
            if answer is not None:
                self.touch()
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
        if task is not None and task.entry.move.phase in _NOT_WIRED:
            failure = Failure("Conflict", action.why.reason, action.why.message)
            task.post(ev.RollbackAsked(failure))

    async def _take_moves(self) -> None:
        """What became of the moves since the last time."""
        for session_id, flight in self.drain.flights.items():
            move_id = self._move_ids[session_id]
            task = self._moves.get(move_id)
            if task is None:
                entry = await self._runtime.directory.do(move_table.get_move, move_id)
                del self._move_ids[session_id]
                await self._take(_ended(session_id, entry))
                node_id = flight.move.source_node_id
                await self._book.moved(node_id, self.drain.moved[node_id])
            elif task.entry.move.phase in _SENT and flight.stage is not Stage.SENT:
                await self._take(dv.Sent(session_id))
            elif task.entry.move.phase in _WIRED and flight.stage is Stage.ASKED:
                await self._take(dv.Wired(session_id))


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
