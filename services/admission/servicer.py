"""Servicer: admission over gRPC. Parses once, paces, asks the runtime, encodes the answer."""

from __future__ import annotations

import grpc

from services.admission import parse
from services.admission.pacing import ClientPacer
from services.admission.paths import Pair, Record, age_ms
from services.admission.runtime import AdmissionRuntime
from worldline.admissibility.path_rate import PathRate
from worldline.admissibility.row_codec import shape_to_proto
from worldline.fields import identifier
from worldline.rpc.census import process_census
from worldline.telemetry import note_verdict, span
from worldline.ticket import ticket_to_proto
from worldline.v1 import admission_pb2, admission_pb2_grpc, move_pb2
from worldline.verdict import verdict_to_proto

SERVICE_NAME = admission_pb2.DESCRIPTOR.services_by_name["AdmissionService"].full_name
#: Who asks, where the request itself does not say.
CLIENT_ID_METADATA = "worldline-client-id"
ANONYMOUS = "anonymous"


class AdmissionServicer(admission_pb2_grpc.AdmissionServiceServicer):
    """AdmissionService. Only the two requests for permission are paced: a client that is over
    its rate must still be able to give back what it holds.
    """

    def __init__(self, runtime: AdmissionRuntime, pacer: ClientPacer) -> None:
        self._runtime = runtime
        self._pacer = pacer

    async def AdmitSession(  # noqa: N802
        self, request: admission_pb2.AdmitSessionRequest, context: grpc.aio.ServicerContext
    ) -> admission_pb2.AdmitSessionResponse:
        """May this session start on this device?"""
        parsed = parse.session_request(request)
        await self._pacer.admit(_client_id(request.client_id, context))
        with span("admission.admit_session", engine_id=parsed.device.engine_id) as active:
            decision = self._runtime.admit_session(parsed)
            active.set(verdict=decision.verdict.label)
            note_verdict(active, decision.verdict)
        return admission_pb2.AdmitSessionResponse(
            verdict=verdict_to_proto(decision.verdict),
            unmeasured=[shape_to_proto(shape) for shape in decision.unmeasured],
        )

    async def AdmitMove(  # noqa: N802
        self, request: admission_pb2.AdmitMoveRequest, context: grpc.aio.ServicerContext
    ) -> admission_pb2.AdmitMoveResponse:
        """May this move start now?"""
        parsed = parse.move_request(request)
        client_id = _client_id(request.client_id, context)
        await self._pacer.admit(client_id)
        with span(
            "admission.admit",
            move_id=parsed.move_id,
            session_id=parsed.session_id,
            epoch=parsed.epoch,
            purpose=parsed.purpose,
            source_node_id=parsed.source_node_id,
            candidates=len(parsed.targets),
            bytes=parsed.extent_bytes,
        ) as active:
            answer, ticket = self._runtime.admit_move(parsed, client_id)
            verdict = answer.verdict
            active.set(
                verdict=verdict.label,
                target_node_id=answer.target.node_id,
                wire_wait_ms=verdict.numbers.get("wire_wait_ms"),
                rate=verdict.numbers.get("rate_bytes_per_s"),
                t_migrate_ms=verdict.numbers.get("t_migrate_ms"),
                retry_after_ms=verdict.retry_after_ms,
            )
            note_verdict(active, verdict)
        return admission_pb2.AdmitMoveResponse(
            verdict=verdict_to_proto(verdict),
            ticket=ticket_to_proto(ticket) if ticket is not None else None,
            target_node_id=answer.target.node_id,
            target_engine_id=answer.target.engine_id,
        )

    async def FinishMove(  # noqa: N802
        self, request: admission_pb2.FinishMoveRequest, context: grpc.aio.ServicerContext
    ) -> admission_pb2.FinishMoveResponse:
        """End a ticket's hold; saying so again changes nothing."""
        report = parse.move_report(request)
        with span("admission.finish", move_id=report.move_id, committed=report.committed) as active:
            finished = self._runtime.finish_move(report)
            active.set(held=finished is not None)
        return admission_pb2.FinishMoveResponse()

    async def Relearn(  # noqa: N802
        self, request: admission_pb2.RelearnRequest, context: grpc.aio.ServicerContext
    ) -> admission_pb2.RelearnResponse:
        """Be told what is under way after a restart; saying so again changes nothing."""
        moves, paths = parse.relearned(request)
        return admission_pb2.RelearnResponse(holds=self._runtime.relearn(moves, paths))

    async def GetTicketKey(  # noqa: N802
        self, request: admission_pb2.GetTicketKeyRequest, context: grpc.aio.ServicerContext
    ) -> admission_pb2.GetTicketKeyResponse:
        """What verifiers need: the public key and this process's clock."""
        key_id, public_key, now_ms = self._runtime.ticket_key()
        return admission_pb2.GetTicketKeyResponse(
            key_id=key_id, public_key=public_key, now_ms=now_ms
        )

    async def DescribeAdmission(  # noqa: N802
        self, request: admission_pb2.DescribeAdmissionRequest, context: grpc.aio.ServicerContext
    ) -> admission_pb2.DescribeAdmissionResponse:
        """What is measured, held and counted, now."""
        core, now_s = self._runtime.core, self._runtime.now_s()
        holds = [
            admission_pb2.DescribeAdmissionResponse.Hold(
                ticket_id=hold.claims.ticket_id,
                move_id=hold.claims.move_id,
                source_node_id=hold.claims.source_node_id,
                target_node_id=hold.claims.target_node_id,
                remaining_ms=hold.remaining_ms(now_s),
            )
            for hold in core.holds.all()
        ]
        counts = process_census() | {"holds": len(holds), "paced_waiters": self._pacer.waiting}
        return admission_pb2.DescribeAdmissionResponse(
            paths=[
                _path_to_proto(pair, path, core.paths.record(pair), now_s)
                for pair, path in core.paths.sorted()
            ],
            holds=holds,
            census=move_pb2.Census(counts=counts),
            verdicts=dict(core.verdicts),
            relearning=core.relearning,
        )


def _client_id(named: str, context: grpc.aio.ServicerContext) -> str:
    """Who to pace: the request's client, else the metadata's, else everybody unnamed together.

    The request goes first: placement asks on behalf of clients and says for whom.
    """
    if named:
        return identifier(named, "client_id")
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_METADATA:
            return identifier(str(value), CLIENT_ID_METADATA)
    return ANONYMOUS


def _path_to_proto(
    pair: Pair, path: PathRate, record: Record, now_s: float
) -> admission_pb2.PathRate:
    source, target = pair
    cost = path.mean_cost
    return admission_pb2.PathRate(
        source_node_id=source,
        target_node_id=target,
        rate_bytes_per_s=cost.rate_bytes_per_s,
        deviation_bytes_per_s=path.deviation_bytes_per_s,
        setup_ms=cost.setup_ms,
        samples=path.samples,
        age_ms=round(age_ms(path, now_s)),
        moves_ended=record.ended,
        moves_corrupted=record.corrupted,
    )
