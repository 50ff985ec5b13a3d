"""Errors to gRPC status and back, with the details of google.rpc (AIP-193).

The wire form is the standard one, so that any gRPC client can read it: ErrorInfo carries the
reason and the facts, BadRequest the field, RetryInfo the wait.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from worldline.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    InvalidInput,
    Unavailable,
    WorldlineError,
    error_classes,
)

DOMAIN = "worldline"


def to_status(error: WorldlineError) -> grpc.Status:
    """The gRPC status of an error, for `context.abort_with_status`."""
    details = [
        error_details_pb2.ErrorInfo(
            reason=error.reason,
            domain=DOMAIN,
            metadata={"class": type(error).__name__, **error.details()},
        )
    ]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for target, detail in zip(packed, details, strict=True):
        target.Pack(detail)
    code: int = error.status.value[0]
    return rpc_status.to_status(status_pb2.Status(code=code, message=error.message, details=packed))


def from_rpc_error(error: grpc.aio.AioRpcError) -> WorldlineError:
    """The error that a peer raised, or what the transport's own status means here."""
    return _raised_by_peer(error) or _from_transport(error)


def is_ours(error: grpc.aio.AioRpcError) -> bool:
    """Whether a service of ours raised it, and not gRPC itself."""
    return _raised_by_peer(error) is not None


def _raised_by_peer(error: grpc.aio.AioRpcError) -> WorldlineError | None:
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # details that do not belong to the status: not one of ours
        return None
    if status is None:
        return None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return _rebuild(info, status)
    return None


def _rebuild(info: error_details_pb2.ErrorInfo, status: status_pb2.Status) -> WorldlineError:
    facts = dict(info.metadata)
    by_name = {cls.__name__: cls for cls in error_classes()}
    cls = by_name.get(facts.get("class", ""), WorldlineError)
    granule = facts.get("granule")
    retry_after_ms: int | None = None
    for detail in status.details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
    return cls(
        status.message,
        reason=info.reason,
        field=facts.get("field"),
        leaf=facts.get("leaf"),
        granule=int(granule) if granule is not None else None,
        retry_after_ms=retry_after_ms,
    )


def _from_transport(error: grpc.aio.AioRpcError) -> WorldlineError:
    """Statuses that gRPC itself makes, without our details."""
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return InvalidInput(
            f"message over the gRPC size limit: {text}", reason="MESSAGE_TOO_LARGE", field="message"
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return CapacityExhausted(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(text or "the call's deadline ran out; ask what became of it")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Unavailable(text or "the peer cannot be reached")
    return WorldlineError(f"{code.name}: {text}", reason=code.name)
