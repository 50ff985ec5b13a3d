"""Raw push: the same bytes over the same path without any digest, for comparison.

An operator's measurement: it asks admission for a probe's ticket as placement does, and what
lands can never be promoted.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from worldline.contract import Contract, DeterminismTier, contract_to_proto
from worldline.rpc.channel import ChannelPool, call
from worldline.rpc.push import PushCall
from worldline.sdk.move_record import PushStats, push_stats_from_proto
from worldline.sdk.rejected import Rejected
from worldline.state.codec import layout_to_proto
from worldline.state.layout import flat_layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.ticket import parse_claims
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
)
from worldline.verdict import verdict_from_proto

_CALL_S = 60.0
_PUSH_S = 300.0


@dataclass(frozen=True, slots=True)
class RawPath:
    """From one mover to another, and who admits it; addresses are host:port."""

    admission_address: str
    source_node_id: str
    source_address: str
    target_node_id: str
    target_address: str


async def push_unverified(path: RawPath, size_bytes: int, contract: Contract) -> PushStats:
    """Push `size_bytes` random bytes with verification off.

    Raises:
        Rejected: admission said no.
        WorldlineError: a call failed; what was held was given back.
    """
    channels = ChannelPool()
    try:
        admission = admission_pb2_grpc.AdmissionServiceStub(channels.get(path.admission_address))
        manifest = _manifest(size_bytes)
        request = _admit_request(path, manifest, contract)
        answer = await call(admission.AdmitMove, request, timeout_s=_CALL_S)
        verdict = verdict_from_proto(answer.verdict)
        if not verdict.admitted:
            raise Rejected(verdict)
        try:
            return await _transfer(channels, path, answer.ticket, manifest)
        finally:
            finish = admission_pb2.FinishMoveRequest(
                ticket_id=parse_claims(answer.ticket.claims).ticket_id,
                move_id=manifest.session_id,
                reason="PROBE",
            )
            await call(admission.FinishMove, finish, timeout_s=_CALL_S)
    finally:
        await channels.close()


async def _transfer(
    channels: ChannelPool, path: RawPath, ticket: move_pb2.SignedTicket, manifest: Manifest
) -> PushStats:
    source = mover_pb2_grpc.MoverServiceStub(channels.get(path.source_address))
    target = mover_pb2_grpc.MoverServiceStub(channels.get(path.target_address))
    reserve = mover_pb2.ReserveRequest(ticket=ticket, layout=layout_to_proto(manifest.layout))
    reserved = await call(target.Reserve, reserve, timeout_s=_CALL_S)
    order = mover_pb2.PushOrder(
        ticket=ticket,
        session_id=manifest.session_id,
        epoch=manifest.epoch,
        layout=layout_to_proto(manifest.layout),
        reservation_id=reserved.reservation_id,
        target_mover_address=path.target_address,
        verification=move_pb2.VERIFICATION_OFF,
    )
    push = PushCall(source, order, _PUSH_S)
    try:
        await push.arm()
        await push.go(manifest.block_index, manifest.layout)
        outcome = await push.outcome()
        return push_stats_from_proto(outcome.push_stats)
    finally:
        await push.close()
        release = mover_pb2.ReleaseRequest(slot=reserved.slot, session_id=manifest.session_id)
        await call(target.Release, release, timeout_s=_CALL_S)


def _manifest(size_bytes: int) -> Manifest:
    return Manifest(
        session_id=f"probe-{secrets.token_hex(12)}",
        epoch=1,
        block_index=0,
        layout=flat_layout("probe", size_bytes),
        fingerprint=Fingerprint.of({"purpose": "probe"}),
        determinism_tier=DeterminismTier.T0_BITWISE,
    )


def _admit_request(
    path: RawPath, manifest: Manifest, contract: Contract
) -> admission_pb2.AdmitMoveRequest:
    return admission_pb2.AdmitMoveRequest(
        move_id=manifest.session_id,
        session_id=manifest.session_id,
        epoch=manifest.epoch,
        contract=contract_to_proto(contract),
        source_node_id=path.source_node_id,
        targets=[admission_pb2.MoveTarget(node_id=path.target_node_id, slots_free=1)],
        extent_bytes=manifest.layout.extent_bytes,
        topology_hash=manifest.layout.topology_hash,
        purpose=move_pb2.MOVE_PURPOSE_PROBE,
        client_id="worldline-bench",
    )
