"""In-test admission of placement, and how an in-test peer is served."""

# gRPC names its methods.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.admission.device import decide_session
from services.admission.parse import session_request
from services.admission.policy import Policy
from tests.unit.placement.faults import Faults
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import shape_to_proto
from worldline.rpc.server import GrpcServer
from worldline.ticket import MovePurpose, TicketClaims, TicketSigner, ticket_to_proto
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    move_pb2,
)
from worldline.verdict import RejectReason, Verdict, verdict_to_proto


class FakeAdmission(admission_pb2_grpc.AdmissionServiceServicer):
    """Tickets that are held, and the verdicts to give."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.held: dict[str, str] = {}
        self.finished: list[admission_pb2.FinishMoveRequest] = []
        self.verdicts: list[Verdict] = []
        self.session_verdicts: list[Verdict] = []
        self.measured = True
        #: Which of the targets to choose, by node; empty: the first.
        self.chosen_node_id = ""
        self.horizon_ms = 400.0
        #: Restarted, and not yet told what is under way.
        self.relearning = False
        self.told: list[admission_pb2.RelearnRequest] = []
        self.asked: list[admission_pb2.AdmitMoveRequest] = []
        self.clients: list[str] = []
        self.loads: list[admission_pb2.DeviceLoad] = []
        #: Decide about sessions by the arithmetic of the real one.
        self.reckons = False
        self._signer = TicketSigner.generate()

    async def AdmitSession(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.loads.append(request.device)
            if self.reckons:
                return self._reckon(request)
            known = {one.shape.preset for one in request.device.rows}
            lacks = {request.preset, *(one.preset for one in request.device.residents)} - known
            if request.contract.period_ms > 0 and lacks:
                no = Verdict.reject(RejectReason.QUANTUM_UNMEASURED, "unknown", retry_after_ms=9)
                return admission_pb2.AdmitSessionResponse(
                    verdict=verdict_to_proto(no),
                    unmeasured=[shape_to_proto(RequestShape(one)) for one in sorted(lacks)],
                )
            verdict = self.session_verdicts.pop(0) if self.session_verdicts else None
            return admission_pb2.AdmitSessionResponse(
                verdict=verdict_to_proto(verdict or Verdict.admit("room"))
            )

        return await self.faults.around("AdmitSession", work)

    def _reckon(self, request: Any) -> admission_pb2.AdmitSessionResponse:
        decision = decide_session(session_request(request), Policy())
        return admission_pb2.AdmitSessionResponse(
            verdict=verdict_to_proto(decision.verdict),
            unmeasured=[shape_to_proto(one) for one in decision.unmeasured],
        )

    async def AdmitMove(self, request: Any, context: Any) -> Any:
        return await self.faults.around("AdmitMove", lambda: self._admit(request))

    def _admit(self, request: Any) -> admission_pb2.AdmitMoveResponse:
        self.clients.append(request.client_id)
        self.asked.append(request)
        target = next(
            (one for one in request.targets if one.node_id == self.chosen_node_id),
            request.targets[0],
        )
        if self.relearning and request.purpose == move_pb2.MOVE_PURPOSE_SESSION:
            no = Verdict.reject(RejectReason.RELEARNING, "just started", retry_after_ms=50)
            return admission_pb2.AdmitMoveResponse(verdict=verdict_to_proto(no))
        verdict = self.verdicts.pop(0) if self.verdicts else None
        probe = request.purpose == move_pb2.MOVE_PURPOSE_PROBE
        if verdict is None and not self.measured and not probe:
            verdict = Verdict.reject(RejectReason.PATH_UNMEASURED, "never measured")
        if verdict is not None:
            return admission_pb2.AdmitMoveResponse(
                verdict=verdict_to_proto(verdict),
                target_node_id=target.node_id,
                target_engine_id=target.engine_id,
            )
        claims = TicketClaims(
            ticket_id=f"t-{request.move_id}",
            move_id=request.move_id,
            session_id=request.session_id,
            epoch=request.epoch,
            source_node_id=request.source_node_id,
            target_node_id=target.node_id,
            extent_bytes_max=request.extent_bytes,
            topology_hash=request.topology_hash,
            purpose=MovePurpose(request.purpose),
            issued_at_ms=0,
            valid_for_ms=60_000,
            lease_ms=1000,
            horizon_ms=0.0 if probe else self.horizon_ms,
            move_ms=0.0 if probe else 100.0,
            wire_ms=50.0,
        )
        self.held[claims.ticket_id] = request.move_id
        return admission_pb2.AdmitMoveResponse(
            verdict=verdict_to_proto(Verdict.admit("in time", {"l_star_ms": 1.0})),
            ticket=ticket_to_proto(self._signer.sign(claims)),
            target_node_id=target.node_id,
            target_engine_id=target.engine_id,
        )

    async def Relearn(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.told.append(request)
            self.relearning = False
            for one in request.moves:
                self.held[one.ticket_id] = one.move_id
            return admission_pb2.RelearnResponse(holds=len(self.held))

        return await self.faults.around("Relearn", work)

    async def FinishMove(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.finished.append(request)
            held = [one for one, move_id in self.held.items() if move_id == request.move_id]
            for ticket_id in held:
                del self.held[ticket_id]
            if request.reason == "PROBE" and request.HasField("push_stats"):
                self.measured = True
            return admission_pb2.FinishMoveResponse()

        return await self.faults.around("FinishMove", work)


async def serve(register: Callable[[Any, Any], None], servicer: object) -> tuple[GrpcServer, str]:
    server = GrpcServer()
    address = server.bind("127.0.0.1:0")
    server.add(register, servicer, type(servicer).__name__)
    await server.start()
    return server, address
