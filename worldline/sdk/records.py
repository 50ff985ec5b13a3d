"""Records: nodes, sessions, moves and traces as a client sees them; parsed once, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import worldline.errors as tree
from worldline.contract import Contract, contract_from_proto
from worldline.errors import InvariantBroken, WorldlineError
from worldline.fields import enum_member
from worldline.sdk.rejected import Rejected
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import Verdict, verdict_from_proto


class MovePhase(IntEnum):
    """Phases of a move, in order; numbers as in move.proto."""

    REQUESTED = 1
    ADMITTED = 2
    RESERVED = 3
    FROZEN = 4
    STAGED = 5
    VERIFIED = 6
    ATTACHED = 7
    COMMITTED = 8
    DONE = 9
    ROLLING_BACK = 10
    ABORTED = 11
    REJECTED = 12

    @property
    def terminal(self) -> bool:
        """Nothing happens to the move any more."""
        return self in (MovePhase.DONE, MovePhase.ABORTED, MovePhase.REJECTED)


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
class Progress:
    """A step of a move: its phase, and bytes while they are pushed (0 of 0 otherwise)."""

    phase: MovePhase
    sent_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a move stopped and why; `leaf` and `granule` where bytes differed."""

    reason: str
    message: str
    leaf: str = ""
    granule: int | None = None
    field: str = ""

    def to_error(self) -> WorldlineError:
        """As an exception: IntegrityError where bytes differed."""
        different = bool(self.leaf) or self.granule is not None
        cls = tree.IntegrityError if different else tree.TransferFailed
        return cls(
            self.message,
            reason=self.reason,
            leaf=self.leaf or None,
            granule=self.granule,
            field=self.field or None,
        )


@dataclass(frozen=True, slots=True)
class PushStats:
    """What the wire did; `verified` tells whether digests were computed on the way."""

    wire_bytes: int
    chunks: int
    chunk_bytes: int
    window_chunks: int
    wire_ms: float
    verify_tail_ms: float
    verified: bool
    lanes: tuple[str, ...]

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes over time on the wire, the wait for the last digest included; 0 if unmeasured."""
        total_ms = self.wire_ms + self.verify_tail_ms
        return self.wire_bytes / total_ms * 1e3 if total_ms > 0 else 0.0


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The durable record of a move, as placement keeps it."""

    move_id: str
    session_id: str
    source_engine_id: str
    target_engine_id: str
    source_epoch: int
    phase: MovePhase
    verdict: Verdict | None
    failure: Failure | None
    timings_ms: Mapping[str, float] = field(hash=False)
    push_stats: PushStats | None
    frozen_ms: float
    source_digest: int
    target_digest: int
    trace_id: str
    age_ms: int

    @property
    def committed(self) -> bool:
        """The world changed hands."""
        return self.phase in (MovePhase.COMMITTED, MovePhase.DONE)

    @property
    def outcome(self) -> str:
        """committed, aborted, rejected, or running."""
        if self.committed:
            return "committed"
        return {MovePhase.ABORTED: "aborted", MovePhase.REJECTED: "rejected"}.get(
            self.phase, "running"
        )

    @property
    def reason(self) -> str:
        """Why it did not commit; empty where it did or still runs."""
        if self.committed:
            return ""
        if self.phase is MovePhase.REJECTED and self.verdict is not None:
            return self.verdict.label
        return self.failure.reason if self.failure is not None else ""

    def raise_unless_committed(self) -> None:
        """For callers to whom anything but a committed move is an error.

        Raises:
            Rejected: the verdict was a reject.
            WorldlineError: the move was rolled back; IntegrityError where bytes differed.
        """
        if self.committed:
            return
        if self.phase is MovePhase.REJECTED and self.verdict is not None:
            raise Rejected(self.verdict)
        if self.failure is not None:
            raise self.failure.to_error()
        raise InvariantBroken(f"move {self.move_id} ended in {self.phase.name} without a reason")


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


def progress_from_proto(message: placement_pb2.MoveProgress) -> Progress:
    """Parse once, at the edge.

    Raises:
        InvalidInput: a phase that is unknown here.
    """
    phase = enum_member(MovePhase, message.phase, "progress.phase")
    return Progress(phase, message.sent_bytes, message.total_bytes)


def failure_from_proto(message: move_pb2.Failure) -> Failure:
    """Parse once, at the edge."""
    return Failure(
        reason=message.reason,
        message=message.message,
        leaf=message.leaf,
        granule=message.granule if message.HasField("granule") else None,
        field=message.field,
    )


def push_stats_from_proto(message: move_pb2.PushStats) -> PushStats:
    """Parse once, at the edge."""
    return PushStats(
        wire_bytes=message.wire_bytes,
        chunks=message.chunks,
        chunk_bytes=message.chunk_bytes,
        window_chunks=message.window_chunks,
        wire_ms=message.wire_ms,
        verify_tail_ms=message.verify_tail_ms,
        verified=message.verification == move_pb2.VERIFICATION_PIPELINED,
        lanes=tuple(message.lanes),
    )


def move_from_proto(message: move_pb2.MoveRecord) -> MoveRecord:
    """Parse once, at the edge.

    Raises:
        InvalidInput: a phase or reject reason that is unknown here.
    """
    return MoveRecord(
        move_id=message.move_id,
        session_id=message.session_id,
        source_engine_id=message.source_engine_id,
        target_engine_id=message.target_engine_id,
        source_epoch=message.source_epoch,
        phase=enum_member(MovePhase, message.phase, "move.phase"),
        verdict=verdict_from_proto(message.verdict) if message.HasField("verdict") else None,
        failure=failure_from_proto(message.failure) if message.HasField("failure") else None,
        timings_ms={timing.name: timing.duration_ms for timing in message.timings},
        push_stats=(
            push_stats_from_proto(message.push_stats) if message.HasField("push_stats") else None
        ),
        frozen_ms=message.frozen_ms,
        source_digest=message.source_digest,
        target_digest=message.target_digest,
        trace_id=message.trace_id,
        age_ms=message.age_ms,
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
