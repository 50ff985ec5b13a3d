"""Runtime: gives admission's decisions a clock, ids, signatures and a reaper."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

import structlog

from services.admission.core import Admission, Finished, MoveAnswer
from services.admission.device import SessionDecision
from services.admission.policy import Policy
from services.admission.requests import (
    MoveReport,
    MoveRequest,
    RememberedPath,
    RunningMove,
    SessionRequest,
)
from worldline.telemetry import instruments
from worldline.ticket import SignedTicket, TicketSigner

_log = structlog.get_logger(__name__)

#: The reaper looks at least this often, whatever it was told.
REAP_INTERVAL_MAX_S = 5.0


class AdmissionRuntime:
    """The one owner of admission's state. Its methods never wait, so they need no lock."""

    def __init__(
        self,
        policy: Policy,
        signer: TicketSigner,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        *,
        relearning: bool = False,
    ) -> None:
        self.core = Admission(policy, relearning=relearning)
        self._signer = signer
        self._clock = clock
        self._new_id = new_id
        self._held = asyncio.Event()

    def now_s(self) -> float:
        """Admission's own monotonic clock."""
        return self._clock()

    def ticket_key(self) -> tuple[bytes, bytes, int]:
        """Key id, public key, and this clock now in milliseconds."""
        return self._signer.key_id, self._signer.public_key, int(self._clock() * 1e3)

    def admit_session(self, request: SessionRequest) -> SessionDecision:
        """Decide on a session."""
        decision = self.core.admit_session(request)
        instruments().verdict(decision.verdict.label)
        _log.info(
            "session.decided",
            verdict=decision.verdict.label,
            engine_id=request.device.engine_id,
            shape=request.shape.name,
            state_bytes=request.state_bytes,
        )
        return decision

    def admit_move(
        self, request: MoveRequest, client_id: str = ""
    ) -> tuple[MoveAnswer, SignedTicket | None]:
        """Decide on a move; sign a ticket when it is admitted.

        Raises:
            Conflict, CapacityExhausted: as `Admission.admit_move`.
        """
        answer = self.core.admit_move(request, self._new_id(), self._clock(), client_id)
        instruments().verdict(answer.verdict.label)
        _log.info(
            "move.decided",
            verdict=answer.verdict.label,
            move_id=request.move_id,
            session_id=request.session_id,
            purpose=request.purpose.name,
            source_node_id=request.source_node_id,
            target_node_id=answer.target.node_id,
            state_bytes=request.extent_bytes,
            retry_after_ms=answer.verdict.retry_after_ms,
        )
        if answer.claims is None:
            return answer, None
        self._held.set()
        # Ed25519 is deterministic: the same claims give the same ticket again.
        return answer, self._signer.sign(answer.claims)

    def relearn(self, moves: tuple[RunningMove, ...], paths: tuple[RememberedPath, ...]) -> int:
        """Be told what is under way; returns how many holds are in force."""
        holds = self.core.relearn(moves, paths, self._clock())
        self._held.set()
        _log.info("admission.relearned", moves=len(moves), paths=len(paths), holds=holds)
        return holds

    def finish_move(self, report: MoveReport) -> Finished | None:
        """End a move's hold, and learn.

        Raises:
            Conflict: as `Admission.finish_move`.
        """
        finished = self.core.finish_move(report, self._clock())
        if finished is None:
            return None
        if finished.taught is not None and report.sample is not None:
            (source, target), _ = finished.taught
            rate = report.sample.wire_bytes / report.sample.transfer_ms * 1e3
            instruments().path_rate(rate, source, target, verified=report.verified)
        _log.info(
            "move.finished",
            move_id=report.move_id,
            committed=report.committed,
            reason=report.reason,
            taught=finished.taught is not None,
        )
        return finished

    def leases(self) -> dict[tuple[str, ...], float]:
        """Holds in force, for the metrics; from any thread."""
        return {("hold",): len(self.core.holds)}

    async def reap(self) -> None:
        """End holds at their deadlines, until cancelled."""
        while True:
            await self._until_due()
            expired = self.core.expire(self._clock())
            instruments().reaped("hold", len(expired))
            for hold in expired:
                _log.warning(
                    "hold.expired",
                    move_id=hold.claims.move_id,
                    ticket_id=hold.claims.ticket_id,
                    source_node_id=hold.claims.source_node_id,
                    target_node_id=hold.claims.target_node_id,
                )

    async def _until_due(self) -> None:
        self._held.clear()
        due_s = self.core.holds.next_deadline_s()
        wait_s = REAP_INTERVAL_MAX_S
        if due_s is not None:
            wait_s = min(max(0.0, due_s - self._clock()), REAP_INTERVAL_MAX_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._held.wait()
        except TimeoutError:
            return
