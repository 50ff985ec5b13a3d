"""Admission: every decision of the service, over plain values. No clock, no I/O, no randomness.

`now_s` is monotonic and never goes back; ids and signatures come from the shell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.admission.device import decide_session
from services.admission.holds import Hold, HoldBook
from services.admission.move import MoveDecision, decide_move
from services.admission.paths import Pair, PathBook
from services.admission.policy import Policy
from services.admission.requests import MoveReport, MoveRequest, SessionRequest
from worldline.admissibility.path_rate import PathRate
from worldline.errors import CapacityExhausted, Conflict
from worldline.ticket import MovePurpose, TicketClaims
from worldline.verdict import Verdict


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    """A verdict, and the claims to sign when it admits."""

    verdict: Verdict
    claims: TicketClaims | None


@dataclass(frozen=True, slots=True)
class Finished:
    """What the end of a move changed: the hold it freed, and the path it taught, if any."""

    hold: Hold
    taught: tuple[Pair, PathRate] | None


class Admission:
    """Holds, measured paths and counters, and the decisions over them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.holds = HoldBook()
        self.paths = PathBook(policy.paths_max)
        #: "admitted", or the reason's name; sessions and moves together, repeats left out.
        self.verdicts: Counter[str] = Counter()
        self.holds_expired = 0

    def admit_session(self, request: SessionRequest) -> Verdict:
        """May this session start on this device? Takes no hold: its slot is the mover's."""
        verdict = decide_session(request, self.policy)
        self.verdicts[verdict.label] += 1
        return verdict

    def admit_move(self, request: MoveRequest, ticket_id: str, now_s: float) -> MoveAnswer:
        """May this move start now? ADMIT takes the hold that the ticket stands for.

        Asked again with the same move while it holds, gives the same answer and takes no second
        hold; `ticket_id` is then left unused. A reject holds nothing and is decided anew.

        Raises:
            Conflict: MOVE_ID_REUSED, the move holds for another request.
            CapacityExhausted: HOLDS_FULL.
        """
        self.expire(now_s)
        held = self.holds.of_move(request.move_id)
        if held is not None:
            return _repeat(held, request)
        if len(self.holds) >= self.policy.holds_max:
            raise CapacityExhausted(
                f"{len(self.holds)} moves hold already, the most that this service keeps",
                reason="HOLDS_FULL",
                retry_after_ms=self.policy.device_retry_ms,
            )
        path = self.paths.get(request.source_node_id, request.target_node_id)
        decision = decide_move(request, path, self.holds, self.policy, now_s)
        self.verdicts[decision.verdict.label] += 1
        if not decision.verdict.admitted:
            return MoveAnswer(decision.verdict, None)
        hold = self._hold(request, decision, ticket_id, now_s)
        self.holds.add(hold)
        return MoveAnswer(decision.verdict, hold.claims)

    def _hold(
        self, request: MoveRequest, decision: MoveDecision, ticket_id: str, now_s: float
    ) -> Hold:
        valid_for_ms = self.policy.valid_for_ms
        lease_ms = self.policy.lease_ms(decision.transfer_ms)
        claims = TicketClaims(
            ticket_id=ticket_id,
            move_id=request.move_id,
            session_id=request.session_id,
            epoch=request.epoch,
            source_node_id=request.source_node_id,
            target_node_id=request.target_node_id,
            extent_bytes_max=request.extent_bytes,
            topology_hash=request.topology_hash,
            purpose=request.purpose,
            issued_at_ms=int(now_s * 1e3),
            valid_for_ms=valid_for_ms,
            lease_ms=lease_ms,
        )
        return Hold(
            request=request,
            claims=claims,
            verdict=decision.verdict,
            issued_at_s=now_s,
            expected_end_s=now_s + decision.move_ms / 1e3,
            deadline_s=now_s + (valid_for_ms + lease_ms) / 1e3,
        )

    def finish_move(self, report: MoveReport, now_s: float) -> Finished | None:
        """End a move's hold and learn from what it measured.

        None where the move holds nothing: it has ended before, or its hold has expired. Only
        verified transfers and probes teach, and each at most once, because only a hold does.

        Raises:
            Conflict: TICKET_MISMATCH, the ticket is another move's.
        """
        self.expire(now_s)
        hold = self._named(report)
        if hold is None:
            return None
        self.holds.end(hold)
        probe = hold.claims.purpose is MovePurpose.PROBE
        if report.sample is None or not (report.verified or probe):
            return Finished(hold, None)
        pair = (hold.claims.source_node_id, hold.claims.target_node_id)
        path = self.paths.teach(pair, report.sample, now_s, self.policy.path_age_max_ms)
        return Finished(hold, (pair, path))

    def _named(self, report: MoveReport) -> Hold | None:
        if not report.ticket_id:
            return self.holds.of_move(report.move_id)
        hold = self.holds.of_ticket(report.ticket_id)
        if hold is not None and hold.claims.move_id != report.move_id:
            raise Conflict(
                f"ticket {report.ticket_id} belongs to another move than {report.move_id}",
                reason="TICKET_MISMATCH",
                field="move_id",
            )
        return hold

    def expire(self, now_s: float) -> list[Hold]:
        """End the holds whose deadline has come; returns them."""
        ended = self.holds.expire(now_s)
        self.holds_expired += len(ended)
        return ended


def _repeat(held: Hold, request: MoveRequest) -> MoveAnswer:
    if held.request != request:
        raise Conflict(
            f"move {request.move_id} holds a ticket for another request; every move needs an id "
            "of its own",
            reason="MOVE_ID_REUSED",
            field="move_id",
        )
    return MoveAnswer(held.verdict, held.claims)
