"""Wire: protobuf to the domain's frozen values and back, in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from services.placement.block_counts import NONE, BlockCounts
from services.placement.device import DeviceRecord
from services.placement.fleet import Fleet
from services.placement.forked import forked_to_proto
from services.placement.orphans import SlotUse
from services.placement.parked import ParkedUse
from services.placement.receipt import Receipt
from services.placement.records import (
    EngineRecord,
    MoveEntry,
    NodeRecord,
    SessionRecord,
    SessionState,
    WorldKind,
)
from services.placement.values import FailedWorld, Failure, PushFigures, SlotName
from worldline.admissibility.profile_row import ProfileRow
from worldline.admissibility.row_codec import row_to_proto
from worldline.contract import contract_to_proto
from worldline.errors import InvalidInput, VersionSkew
from worldline.fields import identifier, non_negative, whole
from worldline.park import park_id
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.state.codec import digests_from_proto, fingerprint_from_proto, fingerprint_to_proto
from worldline.state.layout import Layout
from worldline.v1 import engine_pb2, move_pb2, park_pb2, placement_pb2
from worldline.verdict import verdict_to_proto


def check_version(version: int) -> None:
    """Refuse a peer of another protocol version before anything else.

    Raises:
        VersionSkew: it is another.
    """
    if version != PROTOCOL_VERSION:
        raise VersionSkew(
            f"the peer speaks protocol version {version}, this placement {PROTOCOL_VERSION}",
            field="protocol_version",
        )


def slot_from_proto(message: move_pb2.SlotRef) -> SlotName:
    """Parse a slot's name.

    Raises:
        InvalidInput: it is absent or malformed.
    """
    return SlotName(message.node_id, message.slot_index, message.generation)


def slot_to_proto(slot: SlotName) -> move_pb2.SlotRef:
    """The wire form."""
    return move_pb2.SlotRef(
        node_id=slot.node_id, slot_index=slot.slot_index, generation=slot.generation
    )


def world_from_proto(message: engine_pb2.WorldSpec) -> WorldKind:
    """Parse the kind of world.

    Raises:
        InvalidInput: no preset.
    """
    return WorldKind(preset=message.preset, seed=message.seed)


def world_to_proto(world: WorldKind) -> engine_pb2.WorldSpec:
    """The wire form."""
    return engine_pb2.WorldSpec(preset=world.preset, seed=world.seed)


def node_from_proto(message: placement_pb2.RegisterNodeRequest) -> NodeRecord:
    """Parse a node's registration.

    Raises:
        VersionSkew, InvalidInput: with the field.
    """
    check_version(message.protocol_version)
    return NodeRecord(
        node_id=message.node_id,
        mover_address=message.mover_address,
        incarnation=message.incarnation,
        host_id=message.host_id,
        devices=tuple(_device_from_proto(one) for one in message.devices),
    )


def _device_from_proto(message: placement_pb2.Device) -> DeviceRecord:
    return DeviceRecord(
        name=message.name,
        slots_total=message.slots_total,
        slot_bytes=message.slot_bytes,
        uuid=message.uuid,
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        nvlink_peers=tuple(message.nvlink_peers),
        pcie_peers=tuple(message.pcie_peers),
        digest_rate_bytes_per_s=message.digest_rate_bytes_per_s,
    )


def device_to_proto(
    device: DeviceRecord,
    *,
    slots_free: int,
    in_role: Callable[[int], int] = lambda _role: 0,
) -> placement_pb2.Device:
    """The device as clients see it; `in_role` is how many of its slots have a `SlotRole`."""
    return placement_pb2.Device(
        name=device.name,
        uuid=device.uuid,
        slots_total=device.slots_total,
        slots_free=slots_free,
        slot_bytes=device.slot_bytes,
        numa_node=device.numa_node,
        nvlink_peers=device.nvlink_peers,
        pcie_peers=device.pcie_peers,
        digest_rate_bytes_per_s=device.digest_rate_bytes_per_s,
        slots_live=in_role(move_pb2.SLOT_ROLE_LIVE),
        slots_shadow=in_role(move_pb2.SLOT_ROLE_SHADOW),
        slots_quarantined=in_role(move_pb2.SLOT_ROLE_QUARANTINED),
    )


def engine_from_proto(message: placement_pb2.RegisterEngineRequest) -> EngineRecord:
    """Parse an engine's registration.

    Raises:
        VersionSkew, InvalidInput: with the field.
    """
    check_version(message.protocol_version)
    return EngineRecord(
        engine_id=message.engine_id,
        node_id=message.node_id,
        engine_address=message.engine_address,
        device=message.device,
        fingerprint=fingerprint_from_proto(message.fingerprint),
        incarnation=message.incarnation,
        device_uuid=message.device_uuid,
        numa_node=message.numa_node if message.HasField("numa_node") else None,
    )


def use_from_proto(message: placement_pb2.RenewNodeRequest.SlotUse) -> SlotUse:
    """Parse a reported slot.

    Raises:
        InvalidInput: its name is malformed.
    """
    return SlotUse(
        slot=slot_from_proto(message.slot),
        live=message.role == move_pb2.SLOT_ROLE_LIVE,
        session_id=message.session_id,
        age_ms=message.age_ms,
        device=message.device,
        gives_way=message.gives_way,
    )


def parked_use_from_proto(message: park_pb2.ParkedCopy) -> ParkedUse:
    """Parse a reported copy.

    Raises:
        InvalidInput: its name is malformed.
    """
    return ParkedUse(park_id(message.park_id, "parked.park_id"), message.age_ms)


def failed_from_proto(message: placement_pb2.RenewEngineRequest.FailedWorld) -> FailedWorld:
    """Parse an engine's word that a world of its ended.

    Raises:
        InvalidInput: no session, or an epoch out of range.
    """
    return FailedWorld(
        identifier(message.session_id, "failed.session_id"),
        whole(message.epoch, "failed.epoch"),
        message.message,
    )


def receipt_from_proto(message: move_pb2.Receipt, layout: Layout) -> Receipt:
    """Parse the target's receipt.

    Raises:
        InvalidInput: digests absent, truncated, or of another algorithm.
    """
    return Receipt(
        move_id=message.move_id,
        slot=slot_from_proto(message.slot),
        topology_hash=message.topology_hash,
        digests=digests_from_proto(message.digests, layout),
        received_bytes=message.received_bytes,
    )


def figures_from_proto(message: move_pb2.PushStats) -> PushFigures:
    """Parse what the wire did.

    Raises:
        InvalidInput: a time that is negative or not finite.
    """
    return PushFigures(
        wire_bytes=whole(message.wire_bytes, "push_stats.wire_bytes"),
        chunks=message.chunks,
        chunk_bytes=message.chunk_bytes,
        window_chunks=message.window_chunks,
        wire_ms=non_negative(message.wire_ms, "push_stats.wire_ms"),
        verify_tail_ms=non_negative(message.verify_tail_ms, "push_stats.verify_tail_ms"),
        verification=int(message.verification),
        lanes=tuple(message.lanes),
        blank_bytes=whole(message.blank_bytes, "push_stats.blank_bytes"),
    )


def figures_to_proto(figures: PushFigures | None) -> move_pb2.PushStats | None:
    """The wire form."""
    if figures is None:
        return None
    return move_pb2.PushStats(
        wire_bytes=figures.wire_bytes,
        chunks=figures.chunks,
        chunk_bytes=figures.chunk_bytes,
        window_chunks=figures.window_chunks,
        wire_ms=figures.wire_ms,
        verify_tail_ms=figures.verify_tail_ms,
        verification=move_pb2.Verification.Name(figures.verification),
        lanes=figures.lanes,
        blank_bytes=figures.blank_bytes,
    )


def failure_to_proto(failure: Failure | None) -> move_pb2.Failure | None:
    """The wire form."""
    if failure is None:
        return None
    return move_pb2.Failure(
        reason=failure.reason,
        message=failure.message,
        leaf=failure.leaf,
        granule=failure.granule,
        field=failure.field,
    )


def failure_from_proto(message: move_pb2.Failure) -> Failure:
    """A mover's account of bytes that differ."""
    return Failure(
        kind="IntegrityError",
        reason=message.reason or "DIGEST_MISMATCH",
        message=message.message or "the staged bytes differ",
        leaf=message.leaf,
        granule=message.granule if message.HasField("granule") else None,
        field=message.field,
    )


def move_to_proto(entry: MoveEntry) -> move_pb2.MoveRecord:
    """The record as clients see it."""
    move = entry.move
    record = move_pb2.MoveRecord(
        move_id=move.move_id,
        session_id=move.session_id,
        source_engine_id=move.source.engine_id,
        target_engine_id=move.target.engine_id,
        source_epoch=move.source_epoch,
        phase=move_pb2.MovePhase.Name(int(move.phase)),
        verdict=None if move.verdict is None else verdict_to_proto(move.verdict),
        failure=failure_to_proto(move.failure),
        timings=[
            move_pb2.PhaseTiming(name=name, duration_ms=duration_ms)
            for name, duration_ms in entry.timings
        ],
        push_stats=figures_to_proto(move.figures),
        frozen_ms=entry.frozen_ms,
        source_digest=move.source_digest,
        target_digest=move.target_digest,
        trace_id=entry.trace_id,
        target_slot=None if move.target_slot is None else slot_to_proto(move.target_slot),
        tier_dropped=move.tier_dropped,
    )
    if entry.changed_unix_s > 0:
        record.age_ms = max(0, int((time.time() - entry.changed_unix_s) * 1e3))
    return record


def session_to_proto(
    session: SessionRecord,
    fleet: Fleet,
    block_index: int | None = None,
    block_counts: BlockCounts | None = None,
) -> placement_pb2.Session:
    """The session as clients see it, with the address to dial now."""
    suspended = session.state is SessionState.SUSPENDED
    engine = None if suspended else fleet.engines.get(session.owner)
    parked = session.parked
    return placement_pb2.Session(
        session_id=session.session_id,
        epoch=session.epoch,
        engine_id=session.owner,
        node_id=session.node_id,
        engine_address="" if engine is None else engine.engine_address,
        contract=contract_to_proto(session.contract),
        world=world_to_proto(session.world),
        state=session.state.value,
        slot=None if session.slot is None else slot_to_proto(session.slot),
        state_bytes=session.extent_bytes,
        parked=park_pb2.ParkKind.Name(0 if parked is None else parked.kind),
        block_index=block_index,
        forked_from=forked_to_proto(session.forked_from),
        block_counts=None if block_counts is None else block_counts.to_proto(),
    )


def self_checks_from_proto(messages: Iterable[engine_pb2.SelfCheck]) -> dict[str, str]:
    """By preset, where two runs of it parted; empty: nowhere.

    Raises:
        InvalidInput: a preset has no name.
    """
    return {identifier(one.preset, "self_checks.preset"): one.differs for one in messages}


def engine_to_proto(
    engine: EngineRecord,
    *,
    alive: bool,
    sessions: int,
    rows: Iterable[ProfileRow] = (),
    self_checks: Mapping[str, str] | None = None,
    block_counts: BlockCounts = NONE,
) -> placement_pb2.Engine:
    """The engine as clients see it."""
    checks = sorted((self_checks or {}).items())
    return placement_pb2.Engine(
        engine_id=engine.engine_id,
        node_id=engine.node_id,
        engine_address=engine.engine_address,
        device=engine.device,
        fingerprint=fingerprint_to_proto(engine.fingerprint),
        alive=alive,
        sessions=sessions,
        device_uuid=engine.device_uuid,
        numa_node=engine.numa_node,
        rows=[row_to_proto(row) for row in rows],
        self_checks=[engine_pb2.SelfCheck(preset=name, differs=said) for name, said in checks],
        block_counts=block_counts.to_proto(),
    )


def limit_of(asked: int) -> int:
    """How many moves to list: 100 unless asked, 1,000 at most.

    Raises:
        InvalidInput: more than that.
    """
    if asked > 1_000:
        raise InvalidInput(f"limit is at most 1000, got {asked}", field="limit")
    return asked or 100
