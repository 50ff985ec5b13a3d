"""One tree of errors; each class maps to one gRPC status and carries a machine-readable reason.

A reject by admission is an answer (`Verdict`), not an error. `InvariantBroken` is our bug and
never the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import grpc


class WorldlineError(Exception):
    """Base of everything that Worldline raises on purpose.

    `reason` is stable and for machines, the message is for people and says the way out. `field`
    names the request field or setting at fault, `leaf` and `granule` where bytes differed,
    `retry_after_ms` when asking again can make sense.
    """

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    default_reason: ClassVar[str] = "ERROR"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        field: str | None = None,
        leaf: str | None = None,
        granule: int | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field
        self.leaf = leaf
        self.granule = granule
        self.retry_after_ms = retry_after_ms

    def details(self) -> dict[str, str]:
        """The optional facts as strings, for ErrorInfo.metadata; absent ones are left out."""
        named: Mapping[str, object | None] = {
            "field": self.field,
            "leaf": self.leaf,
            "granule": self.granule,
        }
        return {name: str(value) for name, value in named.items() if value is not None}


class InvalidInput(WorldlineError):
    """A request, setting or manifest that does not parse; `field` or `leaf` says which part."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = "INVALID_INPUT"


class NotFound(WorldlineError):
    """The named session, node, engine, move, slot or reservation is unknown."""

    status = grpc.StatusCode.NOT_FOUND
    default_reason = "NOT_FOUND"


class Conflict(WorldlineError):
    """The object exists but is not in a state that allows this now."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "CONFLICT"


class Fenced(WorldlineError):
    """The caller speaks for an owner, epoch or generation that is no longer current."""

    status = grpc.StatusCode.ABORTED
    default_reason = "FENCED"


class TicketRefused(WorldlineError):
    """The ticket is forged, expired, used, or for something else."""

    status = grpc.StatusCode.PERMISSION_DENIED
    default_reason = "TICKET_REFUSED"


class CapacityExhausted(WorldlineError):
    """No room now: slots, bytes, pacing. `retry_after_ms` where waiting helps."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = "CAPACITY_EXHAUSTED"


class IntegrityError(WorldlineError):
    """Bytes at the target differ from the source's. Nothing was installed."""

    status = grpc.StatusCode.DATA_LOSS
    default_reason = "DIGEST_MISMATCH"


class TransferFailed(WorldlineError):
    """The wire broke: peer gone, request cancelled, truncated. The slot is poisoned."""

    status = grpc.StatusCode.UNAVAILABLE
    default_reason = "TRANSFER_FAILED"


class Unavailable(WorldlineError):
    """A peer cannot be reached; nothing is known to have happened."""

    status = grpc.StatusCode.UNAVAILABLE
    default_reason = "UNAVAILABLE"


class DeadlineExceeded(WorldlineError):
    """A wait ran out. Whether the work happened is unknown: ask, do not assume."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = "DEADLINE_EXCEEDED"


class VersionSkew(WorldlineError):
    """The peer speaks another protocol or layout version; refused before any byte moves."""

    status = grpc.StatusCode.UNIMPLEMENTED
    default_reason = "VERSION_SKEW"


class InvariantBroken(WorldlineError):
    """A bug in Worldline. Report it with the message and the logs around it."""

    status = grpc.StatusCode.INTERNAL
    default_reason = "INVARIANT_BROKEN"


def error_classes() -> tuple[type[WorldlineError], ...]:
    """Every concrete class, in a stable order."""
    return (
        InvalidInput,
        NotFound,
        Conflict,
        Fenced,
        TicketRefused,
        CapacityExhausted,
        IntegrityError,
        TransferFailed,
        Unavailable,
        DeadlineExceeded,
        VersionSkew,
        InvariantBroken,
    )
