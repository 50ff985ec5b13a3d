"""Move record: what a client learns of a move; parsed once, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import worldline.errors as tree
from worldline.errors import InvariantBroken, WorldlineError
from worldline.fields import enum_member
from worldline.move_phase import MovePhase
from worldline.sdk.rejected import Rejected
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import Verdict, verdict_from_proto

#: The step in which bytes are on the wire, and the one that holds the wait for it.
PUSH, ARM = "push", "arm"


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a move: its phase, and bytes once it is frozen (0 of 0 before).

    `step` is what of the record's `timings_ms` runs now, for `step_ms` so far: admit, reserve, arm
    (the wait for the wire, of `wait_max_ms` at most, is in it), freeze, push, verify, attach,
    commit, thaw. It is empty while the move rests between verbs or gives back what it took.
    `elapsed_ms` counts since placement began with the move.
    """

    phase: MovePhase
    sent_bytes: int = 0
    total_bytes: int = 0
    move_id: str = ""
    step: str = ""
    step_ms: float = 0.0
    elapsed_ms: float = 0.0
    wait_max_ms: float = 0.0

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes sent over the time of the push so far; 0 where nothing is pushed."""
        if self.step != PUSH or self.step_ms <= 0:
            return 0.0
        return self.sent_bytes / self.step_ms * 1e3

    @property
    def remaining_ms(self) -> float | None:
        """Until the last byte, at the rate so far; None where that says nothing."""
        rate = self.rate_bytes_per_s
        return (self.total_bytes - self.sent_bytes) / rate * 1e3 if rate > 0 else None


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
    """What the wire did; `verified` tells whether digests were computed on the way.

    `blank_bytes`: zeros of the state that did not travel; the target wrote and verified them.
    """

    wire_bytes: int
    chunks: int
    chunk_bytes: int
    window_chunks: int
    wire_ms: float
    verify_tail_ms: float
    verified: bool
    lanes: tuple[str, ...]
    blank_bytes: int = 0

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes over time on the wire, the wait for the last digest included; 0 if unmeasured."""
        total_ms = self.wire_ms + self.verify_tail_ms
        return self.wire_bytes / total_ms * 1e3 if total_ms > 0 else 0.0


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The durable record of a move, as placement keeps it.

    `tier_dropped`: the session was at T0 and continues at T1 where it went, or would have.
    """

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
    #: How far it is, where it is under way.
    progress: Progress | None = None
    tier_dropped: bool = False

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


def progress_from_proto(message: placement_pb2.MoveProgress) -> Progress:
    """Parse once, at the edge.

    Raises:
        InvalidInput: a phase that is unknown here.
    """
    phase = enum_member(MovePhase, message.phase, "progress.phase")
    return Progress(
        phase,
        message.sent_bytes,
        message.total_bytes,
        move_id=message.move_id,
        step=message.step,
        step_ms=message.step_ms,
        elapsed_ms=message.elapsed_ms,
        wait_max_ms=message.wait_max_ms,
    )


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
        verified=message.verification
        not in (move_pb2.VERIFICATION_UNSPECIFIED, move_pb2.VERIFICATION_OFF),
        lanes=tuple(message.lanes),
        blank_bytes=message.blank_bytes,
    )


def move_from_proto(
    message: move_pb2.MoveRecord, progress: placement_pb2.MoveProgress | None = None
) -> MoveRecord:
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
        progress=None if progress is None else progress_from_proto(progress),
        tier_dropped=message.tier_dropped,
    )
