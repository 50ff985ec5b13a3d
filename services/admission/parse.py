"""Parse: admission's messages into values, once, at the edge."""

from __future__ import annotations

from services.admission.requests import (
    DeviceLoad,
    MoveReport,
    MoveRequest,
    MoveTarget,
    RememberedPath,
    Resident,
    RunningMove,
    SessionRequest,
)
from worldline.admissibility.bounds import DURATION_MS_MAX
from worldline.admissibility.path_rate import TransferSample
from worldline.admissibility.row_codec import row_from_proto
from worldline.contract import contract_from_proto
from worldline.errors import InvalidInput
from worldline.fields import enum_member, non_negative
from worldline.ticket import MovePurpose
from worldline.v1 import admission_pb2, move_pb2


def session_request(message: admission_pb2.AdmitSessionRequest) -> SessionRequest:
    """Parse.

    Raises:
        InvalidInput: a field that is absent or out of range, named.
    """
    for name in ("contract", "device"):
        if not message.HasField(name):
            raise InvalidInput(f"{name} must be given", field=name)
    device = message.device
    return SessionRequest(
        preset=message.preset,
        contract=contract_from_proto(message.contract),
        state_bytes=message.state_bytes,
        device=DeviceLoad(
            engine_id=device.engine_id,
            slots_total=device.slots_total,
            slots_used=device.slots_used,
            slot_bytes=device.slot_bytes,
            rows=tuple(row_from_proto(row) for row in device.rows),
            residents=tuple(
                Resident(one.preset, contract_from_proto(one.contract)) for one in device.residents
            ),
        ),
    )


def move_request(message: admission_pb2.AdmitMoveRequest) -> MoveRequest:
    """Parse. A probe's contract is looked at only where there is one.

    Raises:
        InvalidInput: a field that is absent or out of range, named.
    """
    contract = contract_from_proto(message.contract) if message.HasField("contract") else None
    return MoveRequest(
        move_id=message.move_id,
        session_id=message.session_id,
        epoch=message.epoch,
        contract=contract,
        source_node_id=message.source_node_id,
        targets=tuple([_target(target) for target in message.targets]),
        extent_bytes=message.extent_bytes,
        topology_hash=message.topology_hash,
        purpose=enum_member(MovePurpose, message.purpose, "purpose"),
        dirty_rate_bytes_per_s=message.dirty_rate_bytes_per_s,
        saves_ms=message.saves_ms,
        bulk_wait_ms=message.bulk_wait_ms,
    )


def _target(message: admission_pb2.MoveTarget) -> MoveTarget:
    return MoveTarget(
        node_id=message.node_id,
        engine_id=message.engine_id,
        host_id=message.host_id,
        slots_free=message.slots_free,
        digest_rate_bytes_per_s=message.digest_rate_bytes_per_s,
    )


def relearned(
    message: admission_pb2.RelearnRequest,
) -> tuple[tuple[RunningMove, ...], tuple[RememberedPath, ...]]:
    """Parse what was under way when admission restarted.

    Raises:
        InvalidInput: a field that is absent or out of range, named.
    """
    moves = tuple(
        RunningMove(
            ticket_id=one.ticket_id,
            move_id=one.move_id,
            session_id=one.session_id,
            epoch=one.epoch,
            source_node_id=one.source_node_id,
            target=MoveTarget(one.target_node_id, one.target_engine_id, one.target_host_id),
            extent_bytes=one.extent_bytes,
            remaining_ms=one.remaining_ms,
        )
        for one in message.moves
    )
    paths = tuple(
        RememberedPath(
            source_node_id=one.source_node_id,
            target_node_id=one.target_node_id,
            rate_bytes_per_s=one.rate_bytes_per_s,
            age_ms=float(one.age_ms),
            setup_ms=one.setup_ms,
        )
        for one in message.paths
    )
    return moves, paths


def move_report(message: admission_pb2.FinishMoveRequest) -> MoveReport:
    """Parse. Push figures without bytes or without time measured nothing and are left out.

    Raises:
        InvalidInput: a field that is absent or out of range, named.
    """
    stats = message.push_stats
    wire_ms = non_negative(stats.wire_ms, "push_stats.wire_ms", at_most=DURATION_MS_MAX)
    tail_ms = non_negative(
        stats.verify_tail_ms, "push_stats.verify_tail_ms", at_most=DURATION_MS_MAX
    )
    frozen_ms = non_negative(message.frozen_ms, "frozen_ms", at_most=DURATION_MS_MAX)
    sample: TransferSample | None = None
    if stats.wire_bytes > 0 and 0 < wire_ms + tail_ms <= DURATION_MS_MAX:
        sample = TransferSample(
            wire_bytes=stats.wire_bytes,
            transfer_ms=wire_ms + tail_ms,
            frozen_ms=frozen_ms if message.committed else 0.0,
        )
    return MoveReport(
        ticket_id=message.ticket_id,
        move_id=message.move_id,
        sample=sample,
        verified=stats.verification
        not in (move_pb2.VERIFICATION_UNSPECIFIED, move_pb2.VERIFICATION_OFF),
        committed=message.committed,
        reason=message.reason,
    )
