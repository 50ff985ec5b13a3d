"""Room: may a session be on an engine? Admission's answer, after measuring what it lacks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from services.placement.fleet import Paced, pace_of
from services.placement.move import Move
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import ask_again
from services.placement.phases import MovePhase
from services.placement.records import SessionRecord
from services.placement.runtime import Runtime
from services.placement.values import Party
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_from_proto, row_to_proto, shape_from_proto
from worldline.contract import Contract, contract_to_proto
from worldline.errors import WorldlineError
from worldline.rpc.channel import call
from worldline.telemetry import span
from worldline.v1 import admission_pb2, contract_pb2, engine_pb2
from worldline.verdict import Verdict, verdict_from_proto

_log = structlog.get_logger(__name__)

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RoomWish:
    """A session that is to be on an engine."""

    contract: Contract
    preset: str
    state_bytes: int
    party: Party
    client_id: str


class RoomKeeper:
    """Asks admission about sessions, and has engines measure rows that it lacks."""

    def __init__(self, runtime: Runtime, peers: Peers, deadlines: Deadlines) -> None:
        self._runtime = runtime
        self._peers = peers
        self._deadlines = deadlines
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def turn(self, wish: RoomWish) -> AsyncIterator[None]:
        """From the question until the session is on record: the next is decided with it counted.

        A client that paces its world is counted by nobody, and waits for nobody.
        """
        if wish.contract.period_ms <= 0:
            yield
            return
        async with self._turns[wish.party.engine_id]:
            yield

    async def ask(self, wish: RoomWish, ahead: Sequence[SessionRecord] = ()) -> Verdict:
        """Admission's verdict. What it lacks a row of is measured there first, once.

        `ahead` are sessions that are not on record yet and are counted as if they were.

        Raises:
            Unavailable, DeadlineExceeded: admission could not be asked.
        """
        verdict, unmeasured = await self._ask(wish, ahead)
        if not unmeasured or not await self._measured(wish.party, unmeasured):
            return verdict
        return (await self._ask(wish, ahead))[0]

    async def _ask(
        self, wish: RoomWish, ahead: Sequence[SessionRecord]
    ) -> tuple[Verdict, tuple[RequestShape, ...]]:
        request = admission_pb2.AdmitSessionRequest(
            contract=contract_to_proto(wish.contract),
            preset=wish.preset,
            state_bytes=wish.state_bytes,
            device=await self._device_load(wish.party, ahead),
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
        return verdict_from_proto(answer.verdict), shapes

    async def _measured(self, party: Party, shapes: Sequence[RequestShape]) -> bool:
        """Have the engine time those quanta; False where it could not, which is no error here: the
        verdict that asked for them says when to come back.
        """
        for shape in shapes:
            with span("session.measure", engine_id=party.engine_id, shape=shape.name) as active:
                try:
                    await self._measure(party, shape)
                except WorldlineError as error:
                    active.fail(error.reason)
                    _log.warning(
                        "row.not_measured",
                        engine_id=party.engine_id,
                        shape=shape.name,
                        reason=error.reason,
                        error=error.message,
                    )
                    return False
        return True

    async def _measure(self, party: Party, shape: RequestShape) -> None:
        request = engine_pb2.WarmWorldRequest(
            world=engine_pb2.WorldSpec(preset=shape.preset),
            measure=contract_pb2.DecodeTier.Name(shape.decode_tier),
        )
        answer: engine_pb2.WarmWorldResponse = await call(
            self._peers.engine(party.engine_id).WarmWorld,
            request,
            timeout_s=self._deadlines.warm_s,
        )
        if answer.HasField("row"):
            now = asyncio.get_running_loop().time()
            row = row_from_proto(answer.row)
            self._runtime.fleet.put_row(party.engine_id, party.engine_incarnation, row, now)

    async def _device_load(
        self, party: Party, ahead: Sequence[SessionRecord]
    ) -> admission_pb2.DeviceLoad:
        fleet = self._runtime.fleet
        sessions = (*await self._runtime.sessions(), *ahead)
        # Read after the sessions: a move that ends in between is in one of the two.
        moves = self._runtime.open_move_tasks()
        used = fleet.slots_used(sessions, moves)
        device = fleet.device(party.engine_id)
        now = asyncio.get_running_loop().time()
        return admission_pb2.DeviceLoad(
            engine_id=party.engine_id,
            slots_total=device.slots_total,
            slots_used=min(device.slots_total, used[party.node_id, device.name]),
            slot_bytes=device.slot_bytes,
            rows=[row_to_proto(row) for row in fleet.rows(party.engine_id, now)],
            residents=[
                admission_pb2.DeviceLoad.Resident(
                    preset=pace.preset, contract=contract_to_proto(pace.contract)
                )
                for pace in paces_at(party.engine_id, sessions, moves)
            ],
        )


def paces_at(
    engine_id: str, sessions: Sequence[SessionRecord], moves: Sequence[Move]
) -> list[Paced]:
    """Of the sessions with a period that an engine has, and of those that are moving there."""
    coming = {
        move.session_id
        for move in moves
        if move.target.engine_id == engine_id and move.phase is not MovePhase.COMMITTED
    }
    here = (one for one in sessions if one.owner == engine_id or one.session_id in coming)
    return [pace for one in here if (pace := pace_of(one)) is not None]
