"""Room: may a session be on an engine? Admission's answer, after measuring what it lacks.

Whoever is told yes is counted there from then on: a session that opens, resumes or branches by its
record, one that moves by its move (`MoveContext.room_at`). Until then it has its turn: on
each engine sessions with a period are decided one after the other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from services.placement import session_table
from services.placement.choose import RETRY_AFTER_MS
from services.placement.directory import Directory
from services.placement.fleet import Fleet, Paced, pace_of
from services.placement.move import Move
from services.placement.open_moves import OpenMoves
from services.placement.owner import TaskOwner
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import ask_again
from services.placement.phases import MovePhase
from services.placement.records import SessionRecord
from services.placement.values import Party
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_from_proto, row_to_proto, shape_from_proto
from worldline.contract import Contract, contract_to_proto
from worldline.errors import NotFound, WorldlineError
from worldline.rpc.channel import call
from worldline.telemetry import span
from worldline.v1 import admission_pb2, contract_pb2, engine_pb2
from worldline.verdict import RejectReason, Verdict, verdict_from_proto

_log = structlog.get_logger(__name__)

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RoomWish:
    """A session that is to be on an engine. `moving`: whether a slot is free for it, and for the
    moves under way, is left to whoever admits the move.
    """

    contract: Contract
    preset: str
    state_bytes: int
    party: Party
    client_id: str
    moving: bool = False

    @property
    def paced(self) -> bool:
        """Whether it is promised time."""
        return self.contract.period_ms > 0


class RoomAnswer(NamedTuple):
    """Admission's verdict; where it lacks rows, the shapes to measure there."""

    verdict: Verdict
    unmeasured: tuple[RequestShape, ...] = ()


class _Count(NamedTuple):
    """Who is where; `coming` are the sessions that moves bring, by engine."""

    sessions: tuple[SessionRecord, ...]
    moves: tuple[Move, ...]
    coming: Mapping[str, frozenset[str]]


class RoomKeeper:
    """Asks admission about sessions, and has engines measure rows that it lacks."""

    def __init__(
        self,
        directory: Directory,
        fleet: Fleet,
        moves: OpenMoves,
        peers: Peers,
        deadlines: Deadlines,
        owner: TaskOwner,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._moves = moves
        self._peers = peers
        self._deadlines = deadlines
        self._owner = owner
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: By engine's process and shape: who wants the same row waits for the same measurement.
        self._measuring: dict[tuple[Party, RequestShape], asyncio.Task[None]] = {}

    @asynccontextmanager
    async def decided(self, wish: RoomWish) -> AsyncIterator[Verdict]:
        """Admission's verdict, and the engine's turn until the session is on record: the next is
        decided with it counted. What admission lacks a row of is measured there first, once, in
        nobody's turn.

        A client that paces its world is counted by nobody, and waits for nobody.

        Raises:
            Unavailable, DeadlineExceeded: admission could not be asked.
        """
        if not wish.paced:
            yield (await self._ask(wish)).verdict
            return
        measured = False
        while True:
            async with self._turns[wish.party.engine_id]:
                answer = await self._ask(wish)
                if measured or not answer.unmeasured:
                    yield answer.verdict
                    return
            if not await self.measure(wish.party, answer.unmeasured):
                yield answer.verdict
                return
            measured = True

    async def ask(self, wish: RoomWish, ahead: Sequence[SessionRecord]) -> Verdict:
        """Admission's verdict in a turn that the caller has: `ahead` are sessions that are not on
        record yet and are counted as if they were.

        Raises:
            Unavailable, DeadlineExceeded: admission could not be asked.
        """
        return (await self._ask(wish, ahead)).verdict

    @asynccontextmanager
    async def decided_at_each(self, wishes: Sequence[RoomWish]) -> AsyncIterator[list[RoomAnswer]]:
        """Admission's answers about one session at each of several engines, and all their turns.

        Raises:
            Unavailable, DeadlineExceeded: admission could not be asked.
        """
        engine_ids = sorted({one.party.engine_id for one in wishes})
        async with AsyncExitStack() as turns:
            # Whoever takes more than one turn takes them in this order: nobody waits in a circle.
            for engine_id in engine_ids:
                await turns.enter_async_context(self._turns[engine_id])
            count = await self._count(engine_ids)
            yield await _all(self._ask_if_there(one, count) for one in wishes)

    async def _ask_if_there(self, wish: RoomWish, count: _Count) -> RoomAnswer:
        """One engine of several: that it is gone is a reason to choose another."""
        try:
            return await self._ask_with(wish, count)
        except NotFound as gone:
            no = Verdict.reject(RejectReason.NO_TARGET, gone.message, retry_after_ms=RETRY_AFTER_MS)
            return RoomAnswer(no)

    async def _ask(self, wish: RoomWish, ahead: Sequence[SessionRecord] = ()) -> RoomAnswer:
        return await self._ask_with(wish, await self._count([wish.party.engine_id], ahead))

    async def _ask_with(self, wish: RoomWish, count: _Count) -> RoomAnswer:
        request = admission_pb2.AdmitSessionRequest(
            contract=contract_to_proto(wish.contract),
            preset=wish.preset,
            state_bytes=wish.state_bytes,
            device=self._device_load(wish, count),
            client_id=wish.client_id,
        )
        answer: admission_pb2.AdmitSessionResponse = await ask_again(
            lambda: call(
                self._peers.admission().AdmitSession, request, timeout_s=self._deadlines.admit_s
            ),
            attempts=_ATTEMPTS,
            gone=lambda: False,
        )
        shapes = tuple(shape_from_proto(one) for one in answer.unmeasured)
        return RoomAnswer(verdict_from_proto(answer.verdict), shapes)

    async def measure(self, party: Party, shapes: Sequence[RequestShape]) -> bool:
        """Have the engine time those quanta; False where it could not, which is no error here: the
        verdict that asked for them says when to come back.
        """
        for shape in shapes:
            try:
                await asyncio.shield(self._measurement(party, shape))
            except WorldlineError as error:
                _log.warning(
                    "row.not_measured",
                    engine_id=party.engine_id,
                    shape=shape.name,
                    reason=error.reason,
                    error=error.message,
                )
                return False
        return True

    def _measurement(self, party: Party, shape: RequestShape) -> asyncio.Task[None]:
        """The one under way, or one that begins now; it goes on when its callers go away."""
        key = party, shape
        task = self._measuring.get(key)
        if task is None:
            name = f"measure {shape.name} on {party.engine_id}"
            task = self._measuring[key] = self._owner.start(self._measure(party, shape), name)
            task.add_done_callback(lambda _: self._measuring.pop(key, None))
        return task

    async def _measure(self, party: Party, shape: RequestShape) -> None:
        request = engine_pb2.WarmWorldRequest(
            world=engine_pb2.WorldSpec(preset=shape.preset),
            measure=contract_pb2.DecodeTier.Name(shape.decode_tier),
        )
        with span("session.measure", engine_id=party.engine_id, shape=shape.name) as active:
            try:
                answer: engine_pb2.WarmWorldResponse = await call(
                    self._peers.engine(party.engine_id).WarmWorld,
                    request,
                    timeout_s=self._deadlines.warm_s,
                )
            except WorldlineError as error:
                active.fail(error.reason)
                raise
        if answer.HasField("row"):
            now = asyncio.get_running_loop().time()
            row = row_from_proto(answer.row)
            self._fleet.put_row(party.engine_id, party.engine_incarnation, row, now)

    async def _count(
        self, engine_ids: Iterable[str], ahead: Sequence[SessionRecord] = ()
    ) -> _Count:
        # Before the sessions: a move that commits in between is in both, and counted once.
        coming = {name: self._moves.coming_to(name) for name in engine_ids}
        sessions = (*await self._directory.do(session_table.sessions_now), *ahead)
        # After them: a move that ends in between is in one of the two.
        return _Count(sessions, self._moves.moves(), coming)

    def _device_load(self, wish: RoomWish, count: _Count) -> admission_pb2.DeviceLoad:
        fleet, engine_id = self._fleet, wish.party.engine_id
        moves = count.moves
        if wish.moving:
            moves = tuple(one for one in moves if one.phase is MovePhase.COMMITTED)
        used = fleet.slots_used(count.sessions, moves)
        device = fleet.device(engine_id)
        now = asyncio.get_running_loop().time()
        return admission_pb2.DeviceLoad(
            engine_id=engine_id,
            slots_total=device.slots_total,
            slots_used=min(device.slots_total, used[wish.party.node_id, device.name]),
            slot_bytes=device.slot_bytes,
            rows=[row_to_proto(row) for row in fleet.rows(engine_id, now)],
            residents=[
                admission_pb2.DeviceLoad.Resident(
                    preset=pace.preset, contract=contract_to_proto(pace.contract)
                )
                for pace in paces_at(engine_id, count.sessions, count.coming[engine_id])
            ],
        )


async def _all(asked: Iterable[Coroutine[Any, Any, RoomAnswer]]) -> list[RoomAnswer]:
    """Every answer, and none still under way; the first error where there is one."""
    answers: list[RoomAnswer] = []
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


def paces_at(
    engine_id: str, sessions: Sequence[SessionRecord], coming: Collection[str]
) -> list[Paced]:
    """Of the sessions with a period that an engine has, and of those that are `coming` there."""
    here = (one for one in sessions if one.owner == engine_id or one.session_id in coming)
    return [pace for one in here if (pace := pace_of(one)) is not None]
