"""Records: nodes, sessions and traces as a client sees them; parsed once, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldline.contract import Contract, contract_from_proto
from worldline.v1 import move_pb2, placement_pb2


@dataclass(frozen=True, slots=True)
class World:
    """What kind of world a session is: preset and seed of its weights and noise."""

    preset: str
    seed: int


@dataclass(frozen=True, slots=True)
class SlotName:
    """One use of one slot."""

    node_id: str
    slot_index: int
    generation: int


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine process as the directory knows it."""

    engine_id: str
    node_id: str
    address: str
    device: str
    alive: bool
    sessions: int
    fingerprint: str
    facts: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its mover's slots and its engines."""

    node_id: str
    mover_address: str
    slots_total: int
    slots_free: int
    slot_bytes: int
    alive: bool
    engines: tuple[Engine, ...]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Where a session lives; `state` is opening, live, moving, lost or closed."""

    session_id: str
    epoch: int
    engine_id: str
    node_id: str
    engine_address: str
    contract: Contract
    world: World
    state: str
    state_bytes: int
    slot: SlotName | None


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One timed step in one service; offsets from the trace's first span."""

    span_id: str
    parent_span_id: str
    service: str
    name: str
    start_offset_ms: float
    duration_ms: float
    status: str
    attributes: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of one move, by start."""

    trace_id: str
    spans: tuple[TraceSpan, ...]


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """What placement holds (tasks, descriptors, ...) and how many moves ended how."""

    census: Mapping[str, int] = field(hash=False)
    moves_by_outcome: Mapping[str, int] = field(hash=False)


def placement_status_from_proto(
    message: placement_pb2.DescribePlacementResponse,
) -> PlacementStatus:
    """Parse once, at the edge."""
    return PlacementStatus(
        census=dict(sorted(message.census.counts.items())),
        moves_by_outcome=dict(sorted(message.moves_by_outcome.items())),
    )


def slot_from_proto(message: move_pb2.SlotRef) -> SlotName:
    """Parse once, at the edge."""
    return SlotName(message.node_id, message.slot_index, message.generation)


def node_from_proto(message: placement_pb2.Node) -> Node:
    """Parse once, at the edge."""
    return Node(
        node_id=message.node_id,
        mover_address=message.mover_address,
        slots_total=message.slots_total,
        slots_free=message.slots_free,
        slot_bytes=message.slot_bytes,
        alive=message.alive,
        engines=tuple(_engine_from_proto(engine) for engine in message.engines),
    )


def _engine_from_proto(message: placement_pb2.Engine) -> Engine:
    return Engine(
        engine_id=message.engine_id,
        node_id=message.node_id,
        address=message.engine_address,
        device=message.device,
        alive=message.alive,
        sessions=message.sessions,
        fingerprint=message.fingerprint.hash.hex(),
        facts=dict(sorted(message.fingerprint.facts.items())),
    )


def session_from_proto(message: placement_pb2.Session) -> SessionInfo:
    """Parse once, at the edge.

    Raises:
        InvalidInput: the contract does not parse.
    """
    return SessionInfo(
        session_id=message.session_id,
        epoch=message.epoch,
        engine_id=message.engine_id,
        node_id=message.node_id,
        engine_address=message.engine_address,
        contract=contract_from_proto(message.contract),
        world=World(message.world.preset, message.world.seed),
        state=message.state,
        state_bytes=message.state_bytes,
        slot=slot_from_proto(message.slot) if message.HasField("slot") else None,
    )


def trace_from_proto(message: placement_pb2.GetTraceResponse) -> Trace:
    """Parse once, at the edge."""
    return Trace(
        trace_id=message.trace_id,
        spans=tuple(
            TraceSpan(
                span_id=one.span_id,
                parent_span_id=one.parent_span_id,
                service=one.service,
                name=one.name,
                start_offset_ms=one.start_offset_ms,
                duration_ms=one.duration_ms,
                status=one.status,
                attributes=dict(sorted(one.attributes.items())),
            )
            for one in message.spans
        ),
    )
