"""Verdict: ADMIT, or REJECT with a typed reason; with the arithmetic that led there either way.

A reject is an answer and never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite

from worldline.errors import InvalidInput
from worldline.fields import enum_member, finite, whole
from worldline.v1 import move_pb2


class RejectReason(IntEnum):
    """Why not; numbers as in move.proto."""

    HORIZON_TOO_SHORT = 1
    BANDWIDTH_TOO_LOW = 2
    RECEIVER_BUSY = 3
    SENDER_BUSY = 4
    DUPLEX_PAIR = 5
    PATH_UNMEASURED = 6
    TARGET_FULL = 7
    FINGERPRINT_MISMATCH = 8
    DEVICE_FULL = 9
    DEVICE_OVERCOMMITTED = 10
    STATE_TOO_LARGE = 11
    NO_TARGET = 12
    WIRE_TOO_LATE = 13
    VERIFIER_BUSY = 14
    SAVES_TOO_LITTLE = 15
    RELEARNING = 16
    QUANTUM_UNMEASURED = 17
    NOT_DETERMINISTIC = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer of admission or placement.

    `reason` is None exactly when admitted. `numbers` are named quantities with their unit last
    (`state_bytes`, `l_star_ms`), all finite. `retry_after_ms` is when asking again can make
    sense; 0 where it never will, and always 0 when admitted.

    Raises:
        InvalidInput: the parts contradict each other; `field` is `verdict.<name>`.
    """

    admitted: bool
    reason: RejectReason | None
    explanation: str
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)
    retry_after_ms: int = 0

    def __post_init__(self) -> None:
        if self.admitted != (self.reason is None):
            raise InvalidInput(
                "a verdict has a reason exactly when it rejects", field="verdict.reason"
            )
        whole(self.retry_after_ms, "verdict.retry_after_ms")
        if self.admitted and self.retry_after_ms:
            raise InvalidInput(
                "an admitted verdict has nothing to retry", field="verdict.retry_after_ms"
            )
        # A copy in a stable order: the caller's mapping may change later, this value may not.
        numbers = dict(sorted(self.numbers.items()))
        values = numbers.values()
        if {*map(type, values)} != {float} or not all(map(isfinite, values)):
            for name, value in numbers.items():
                numbers[name] = finite(value, f"verdict.numbers[{name}]")
        object.__setattr__(self, "numbers", numbers)

    @classmethod
    def admit(cls, explanation: str, numbers: Mapping[str, float] | None = None) -> Verdict:
        """ADMIT, with the arithmetic."""
        return cls(admitted=True, reason=None, explanation=explanation, numbers=numbers or {})

    @classmethod
    def reject(
        cls,
        reason: RejectReason,
        explanation: str,
        numbers: Mapping[str, float] | None = None,
        retry_after_ms: int = 0,
    ) -> Verdict:
        """REJECT, with the arithmetic and when to ask again (0: never as things are)."""
        return cls(
            admitted=False,
            reason=reason,
            explanation=explanation,
            numbers=numbers or {},
            retry_after_ms=retry_after_ms,
        )

    @property
    def label(self) -> str:
        """`admitted`, or the reason's name: for counters, logs and tables."""
        return "admitted" if self.reason is None else self.reason.name


def verdict_from_proto(message: move_pb2.Verdict) -> Verdict:
    """Parse once, at the edge.

    Raises:
        InvalidInput: as `Verdict`; also a reason that is unknown here.
    """
    reason: RejectReason | None = None
    if message.reason != move_pb2.REJECT_REASON_UNSPECIFIED:
        reason = enum_member(RejectReason, message.reason, "verdict.reason")
    return Verdict(
        admitted=message.admitted,
        reason=reason,
        explanation=message.explanation,
        numbers=dict(message.numbers),
        retry_after_ms=message.retry_after_ms,
    )


def verdict_to_proto(verdict: Verdict) -> move_pb2.Verdict:
    """The wire form; `verdict_from_proto` gives back an equal verdict."""
    return move_pb2.Verdict(
        admitted=verdict.admitted,
        reason=move_pb2.RejectReason.Name(verdict.reason or 0),
        explanation=verdict.explanation,
        numbers=verdict.numbers,
        retry_after_ms=verdict.retry_after_ms,
    )
