"""Doctor: asks every process of the fleet what it finds, and measures paths between nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from services.placement.fleet import Fleet
from services.placement.measuring import Measuring
from services.placement.peers import Peers
from worldline.doctor.clock import Exchange, best_offset
from worldline.errors import WorldlineError
from worldline.fields import identifier, whole
from worldline.rpc.channel import call
from worldline.rpc.server import GrpcServer
from worldline.v1 import doctor_pb2, doctor_pb2_grpc, move_pb2

SERVICE_NAME = doctor_pb2.DESCRIPTOR.services_by_name["FleetDoctorService"].full_name
WITHIN_MS = 3_000
WITHIN_MS_MAX = 60_000
PUSH_BYTES = 16 << 20
PUSH_BYTES_MAX = 1 << 30
MEASURE_MS = 2_000
#: So many are asked at once.
_ASKED_MAX = 32
#: Of so many questions for the clock the quickest counts.
_EXCHANGES = 5


class _Peer(NamedTuple):
    """One process of the directory."""

    service: str
    instance: str
    node_id: str
    address: str


class FleetDoctor(doctor_pb2_grpc.FleetDoctorServiceServicer):
    """FleetDoctorService; holds nothing between calls."""

    def __init__(
        self,
        fleet: Fleet,
        peers: Peers,
        measuring: Measuring,
        *,
        own_address: str,
        admission_address: str,
    ) -> None:
        self._fleet = fleet
        self._peers = peers
        self._measuring = measuring
        self._own = (
            _Peer("placement", "", "", own_address),
            _Peer("admission", "", "", admission_address),
        )

    def add_to(self, server: GrpcServer) -> None:
        """Serve it beside placement's own service."""
        register = doctor_pb2_grpc.add_FleetDoctorServiceServicer_to_server
        server.add(register, self, SERVICE_NAME)

    async def ExamineFleet(  # noqa: N802 - gRPC's name
        self, request: doctor_pb2.ExamineFleetRequest, context: Any
    ) -> AsyncIterator[doctor_pb2.ExamineFleetResponse]:
        """Everybody, as they answer; the silent at the deadline."""
        within_ms = whole(request.within_ms, "within_ms", at_most=WITHIN_MS_MAX) or WITHIN_MS
        turns = asyncio.Semaphore(_ASKED_MAX)
        asked = [
            asyncio.create_task(self._examine(peer, within_ms / 1e3, turns), name="examine")
            for peer in self._everybody()
        ]
        try:
            for answered in asyncio.as_completed(asked):
                yield await answered
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def MeasurePath(  # noqa: N802 - gRPC's name
        self, request: doctor_pb2.MeasurePathRequest, context: Any
    ) -> doctor_pb2.MeasurePathResponse:
        """Pushes from one node to another, as many as fit into the time."""
        within_ms = whole(request.within_ms, "within_ms", at_most=WITHIN_MS_MAX) or MEASURE_MS
        bytes_max = whole(request.push_bytes_max, "push_bytes_max", at_most=PUSH_BYTES_MAX)
        return await self._measuring.measure(
            identifier(request.source_node_id, "source_node_id"),
            identifier(request.target_node_id, "target_node_id"),
            push_bytes_max=bytes_max or PUSH_BYTES,
            within_s=within_ms / 1e3,
        )

    def _everybody(self) -> tuple[_Peer, ...]:
        movers = [
            _Peer("mover", node.node_id, node.node_id, node.mover_address)
            for _, node in sorted(self._fleet.nodes.items())
        ]
        engines = [
            _Peer("engine", engine.engine_id, engine.node_id, engine.engine_address)
            for _, engine in sorted(self._fleet.engines.items())
        ]
        return (*self._own, *movers, *engines)

    async def _examine(
        self, peer: _Peer, within_s: float, turns: asyncio.Semaphore
    ) -> doctor_pb2.ExamineFleetResponse:
        answer = doctor_pb2.ExamineFleetResponse(**peer._asdict())
        async with turns:
            try:
                async with asyncio.timeout(within_s):
                    await self._ask(peer, within_s, answer)
            except TimeoutError:
                if not answer.HasField("facts"):
                    answer.failure.CopyFrom(
                        move_pb2.Failure(
                            reason="DEADLINE_EXCEEDED",
                            message=f"no answer within {within_s:g} s",
                        )
                    )
            except WorldlineError as error:
                if not answer.HasField("facts"):
                    answer.failure.CopyFrom(
                        move_pb2.Failure(reason=error.reason, message=error.message)
                    )
        return answer

    async def _ask(
        self, peer: _Peer, within_s: float, answer: doctor_pb2.ExamineFleetResponse
    ) -> None:
        """Fill the answer in: its facts, then its clock, as good as time allows."""
        examine = self._peers.doctor(peer.address).Examine
        full = await call(examine, doctor_pb2.ExamineRequest(), timeout_s=within_s)
        answer.facts.CopyFrom(full.facts)
        exchanges: list[Exchange] = []
        for _ in range(_EXCHANGES):
            sent_ns = time.time_ns()
            told = await call(
                examine, doctor_pb2.ExamineRequest(clock_only=True), timeout_s=within_s
            )
            exchanges.append(Exchange(sent_ns, told.unix_time_ns, time.time_ns()))
            best = best_offset(exchanges)
            if best is not None:
                answer.clock_offset_ms = best.offset_ms
                answer.clock_uncertainty_ms = best.uncertainty_ms
