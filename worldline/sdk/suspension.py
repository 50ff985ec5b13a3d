"""Suspension: suspending and resuming a session, and what a client learns of it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from worldline.errors import DeadlineExceeded, InvalidInput, WorldlineError
from worldline.fields import enum_member
from worldline.park import ParkKind, SuspensionPhase, SuspensionVerb
from worldline.sdk.calls import Caller, transport_status
from worldline.sdk.move_record import Failure, failure_from_proto
from worldline.sdk.records import SessionInfo, session_from_proto
from worldline.sdk.rejected import Rejected
from worldline.v1 import park_pb2, placement_pb2, placement_pb2_grpc
from worldline.verdict import verdict_from_proto


@dataclass(frozen=True, slots=True)
class SuspensionRecord:
    """One suspend or resume, as placement keeps it.

    `timings_ms` is by step, in their order; `copy_ms` is the copy alone, the digests that overlap
    it included, `verify_ms` what came after it; `digest` is of the state as it was parked.
    `tier_dropped`: the session was at T0 and goes on at T1 where it was resumed, or would have.
    """

    suspension_id: str
    session_id: str
    verb: SuspensionVerb
    phase: SuspensionPhase
    kind: ParkKind
    epoch: int
    failure: Failure | None
    timings_ms: Mapping[str, float] = field(hash=False)
    copied_bytes: int
    copy_ms: float
    verify_ms: float
    direct_io: bool
    digest: int
    trace_id: str
    tier_dropped: bool = False

    @property
    def total_ms(self) -> float:
        """All steps together."""
        return sum(self.timings_ms.values())


def suspension_from_proto(message: park_pb2.SuspensionRecord) -> SuspensionRecord:
    """Parse once, at the edge.

    Raises:
        InvalidInput: a verb, phase or kind that is unknown here.
    """
    return SuspensionRecord(
        suspension_id=message.suspension_id,
        session_id=message.session_id,
        verb=enum_member(SuspensionVerb, message.verb, "suspension.verb"),
        phase=enum_member(SuspensionPhase, message.phase, "suspension.phase"),
        kind=enum_member(ParkKind, message.kind, "suspension.kind"),
        epoch=message.epoch,
        failure=failure_from_proto(message.failure) if message.HasField("failure") else None,
        timings_ms={timing.name: timing.duration_ms for timing in message.timings},
        copied_bytes=message.stats.copied_bytes,
        copy_ms=message.stats.copy_ms,
        verify_ms=message.stats.verify_ms,
        direct_io=message.stats.direct_io,
        digest=message.digest,
        trace_id=message.trace_id,
        tier_dropped=message.tier_dropped,
    )


def park_kind(text: str) -> ParkKind:
    """`memory` or `file`.

    Raises:
        InvalidInput: neither.
    """
    try:
        return ParkKind[text.upper()]
    except KeyError:
        known = ", ".join(kind.name.lower() for kind in ParkKind)
        raise InvalidInput(f"to must be one of {known}; got {text!r}", field="to") from None


class Suspender:
    """Suspends and resumes one session."""

    def __init__(
        self,
        session_id: str,
        caller: Caller,
        placement: placement_pb2_grpc.PlacementServiceStub,
        timeout_s: float,
    ) -> None:
        self._session_id = session_id
        self._caller = caller
        self._placement = placement
        self._timeout_s = timeout_s

    async def suspend(self, kind: ParkKind) -> tuple[SessionInfo, SuspensionRecord | None]:
        """Where the session stands after, and the record; None where there was nothing to do."""
        request = placement_pb2.SuspendSessionRequest(
            session_id=self._session_id,
            kind=park_pb2.ParkKind.Name(kind),
            idempotency_key=uuid.uuid4().hex,
        )
        answer = await self._until_answered("suspend", self._placement.SuspendSession, request)
        return session_from_proto(answer.session), _record(answer)

    async def resume(self) -> tuple[SessionInfo, SuspensionRecord | None]:
        """As `suspend`.

        Raises:
            Rejected: there is no room for the world now; it stays suspended.
        """
        request = placement_pb2.ResumeSessionRequest(
            session_id=self._session_id, idempotency_key=uuid.uuid4().hex
        )
        answer = await self._until_answered("resume", self._placement.ResumeSession, request)
        if answer.HasField("verdict"):
            raise Rejected(verdict_from_proto(answer.verdict))
        return session_from_proto(answer.session), _record(answer)

    async def _until_answered(self, what: str, method: Callable[..., Any], request: Any) -> Any:
        """Ask again, under one key, where no answer came; an answer is one, an error too."""
        deadline_s = time.monotonic() + self._timeout_s
        attempt = 1
        while True:
            left_s = max(0.001, deadline_s - time.monotonic())
            try:
                return await self._caller.once(method, request, timeout_s=left_s)
            except WorldlineError as error:
                status = transport_status(error)
                if status is None:
                    raise
                if status is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise DeadlineExceeded(
                        f"the {what} of {self._session_id} did not end within "
                        f"{self._timeout_s:g} s; it goes on, see `Session.refresh`"
                    ) from error
                delay_s = self._caller.policy.delay_s(error, attempt, time.monotonic(), deadline_s)
                if delay_s is None:
                    self._caller.give_up(error)
            await asyncio.sleep(delay_s)
            attempt += 1


def _record(answer: Any) -> SuspensionRecord | None:
    return suspension_from_proto(answer.suspension) if answer.HasField("suspension") else None
