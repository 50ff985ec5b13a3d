"""Admission: every decision of the service, over plain values. No clock, no I/O, no randomness.

`now_s` is monotonic and never goes back; ids and signatures come from the shell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from services.admission.device import SessionDecision, decide_session
from services.admission.holds import Hold, HoldBook
from services.admission.move import MoveDecision, MoveJudge
from services.admission.paths import Pair, PathBook
from services.admission.patience import Patience
from services.admission.policy import Policy
from services.admission.relearning import not_yet, remember, running
from services.admission.replan import close_up, give_way
from services.admission.requests import (
    MoveReport,
    MoveRequest,
    MoveTarget,
    RememberedPath,
    RunningMove,
    SessionRequest,
)
from services.admission.turns import Turns
from worldline.admissibility.path_rate import PathRate
from worldline.errors import CapacityExhausted, Conflict
from worldline.ticket import MovePurpose, TicketClaims
from worldline.verdict import RejectReason, Verdict


class MoveAnswer(NamedTuple):
    """A verdict, the receiver that it is about, and the claims to sign when it admits."""

    verdict: Verdict
    target: MoveTarget
    claims: TicketClaims | None


class Finished(NamedTuple):
    """What the end of a move changed: the hold it freed, and the path it taught, if any."""

    hold: Hold
    taught: tuple[Pair, PathRate] | None


class Admission:
    """Holds, measured paths, clients' turns and counters, and the decisions over them.

    With `relearning` it has restarted: it grants nothing before it is told what is under way.
    """

    def __init__(self, policy: Policy, *, relearning: bool = False) -> None:
        self.policy = policy
        self.holds = HoldBook()
        self.paths = PathBook(policy.paths_max)
        self.relearning = relearning
        self.turns = Turns(policy.clients_max)
        self.patience = Patience(policy.clients_max, policy.patience_max_ms)
        #: "admitted", or the reason's name; sessions and moves together, repeats left out.
        self.verdicts: Counter[str] = Counter()
        self.holds_expired = 0

    def admit_session(self, request: SessionRequest) -> SessionDecision:
        """May this session start on this device? Takes no hold: its slot is the mover's."""
        decision = decide_session(request, self.policy)
        self.verdicts[decision.verdict.label] += 1
        return decision

    def admit_move(
        self, request: MoveRequest, ticket_id: str, now_s: float, client_id: str = ""
    ) -> MoveAnswer:
        """May this move have a wire in time? ADMIT takes the hold that the ticket stands for.

        Asked again with the same move while it holds, gives the same answer and takes no second
        hold; `ticket_id` is then left unused. A reject holds nothing and is decided anew.

        Raises:
            Conflict: MOVE_ID_REUSED, the move holds for another request.
            CapacityExhausted: HOLDS_FULL, CLIENT_HOLDS_FULL.
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
        if self.holds.of_client(client_id) >= self.policy.client_holds_max:
            raise CapacityExhausted(
                f"client {client_id} has {self.policy.client_holds_max} moves under way, the most "
                "that one may have",
                reason="CLIENT_HOLDS_FULL",
                retry_after_ms=self.policy.device_retry_ms,
            )
        answer = self._decide(request, ticket_id, now_s, client_id)
        self.verdicts[answer.verdict.label] += 1
        return answer

    def _decide(
        self, request: MoveRequest, ticket_id: str, now_s: float, client_id: str
    ) -> MoveAnswer:
        if self.relearning:
            return MoveAnswer(not_yet(self.policy), request.targets[0], None)
        decision, verdict = self._judge(request, client_id, now_s)
        node_id, session = decision.target.node_id, request.purpose is MovePurpose.SESSION
        if not verdict.admitted:
            # Bulk claims no turn: whoever is not would be kept off by it.
            if session and not request.bulk and verdict.reason is RejectReason.RECEIVER_BUSY:
                self.turns.rejected(node_id, client_id, now_s, verdict.retry_after_ms)
            patient = self.patience.rejected(verdict, client_id, request.session_id, now_s)
            return MoveAnswer(patient, decision.target, None)
        self.patience.admitted(client_id, request.session_id)
        if session:
            others = [target.node_id for target in request.targets]
            self.turns.admitted(node_id, client_id, now_s, others)
        hold = self._hold(request, decision, ticket_id, now_s, client_id)
        self.holds.add(hold)
        give_way(hold, self.holds, self.policy, now_s)
        return MoveAnswer(verdict, hold.target, hold.claims)

    def _judge(
        self, request: MoveRequest, client_id: str, now_s: float
    ) -> tuple[MoveDecision, Verdict]:
        """Decide; a receiver that it is another client's turn at is left out, if there are more."""
        asked = request
        while True:
            decision = MoveJudge(asked, self.paths, self.holds, self.policy, now_s).decide()
            verdict = decision.verdict
            if not verdict.admitted or request.purpose is MovePurpose.PROBE:
                return decision, verdict
            verdict = self.turns.check(verdict, decision.target.node_id, client_id, now_s)
            if verdict.admitted:
                return decision, verdict
            left = tuple(target for target in asked.targets if target != decision.target)
            if not left:
                return decision, verdict
            asked = replace(asked, targets=left)

    def _hold(
        self,
        request: MoveRequest,
        decision: MoveDecision,
        ticket_id: str,
        now_s: float,
        client_id: str,
    ) -> Hold:
        policy = self.policy
        horizon_ms = request.deadline_ms(decision.move_ms)
        lease_ms = policy.lease_ms(decision.transfer_ms)
        claims = TicketClaims(
            ticket_id=ticket_id,
            move_id=request.move_id,
            session_id=request.session_id,
            epoch=request.epoch,
            source_node_id=request.source_node_id,
            target_node_id=decision.target.node_id,
            extent_bytes_max=request.extent_bytes,
            topology_hash=request.topology_hash,
            purpose=request.purpose,
            issued_at_ms=int(now_s * 1e3),
            valid_for_ms=policy.valid_for_ms,
            lease_ms=lease_ms,
            horizon_ms=horizon_ms,
            move_ms=decision.move_ms,
            wire_ms=decision.expected_ms,
            bulk=request.bulk,
        )
        # Until it asks, while it waits, until the go, and the transfer: no mover goes on after.
        wait_ms = max(0.0, horizon_ms - decision.move_ms)
        life_ms = policy.valid_for_ms + wait_ms + 2 * lease_ms
        return Hold(
            claims=claims,
            target=decision.target,
            wire=decision.wire,
            deadline_s=now_s + life_ms / 1e3,
            verdict=decision.verdict,
            rate_bytes_per_s=decision.rate_bytes_per_s,
            request=request,
            client_id=client_id,
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
        close_up(hold, self.holds, self.policy, now_s)
        pair = (hold.claims.source_node_id, hold.target.node_id)
        self.paths.note(pair, corrupted=report.corrupted)
        probe = hold.claims.purpose is MovePurpose.PROBE
        if report.sample is None or not (report.verified or probe):
            return Finished(hold, None)
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
        for hold in ended:
            close_up(hold, self.holds, self.policy, now_s)
        self.holds_expired += len(ended)
        return ended

    # --- after a restart ---------------------------------------------------------------------

    def relearn(
        self, moves: tuple[RunningMove, ...], paths: tuple[RememberedPath, ...], now_s: float
    ) -> int:
        """Be told what is under way; returns how many holds are in force.

        Told again, it takes what it does not hold yet. A remembered path counts as one
        measurement, and never over one of its own.
        """
        self.expire(now_s)
        for path in paths:
            remember(path, self.paths, self.policy, now_s)
        for move in moves:
            known = self.holds.of_ticket(move.ticket_id) or self.holds.of_move(move.move_id)
            if known is None and len(self.holds) < self.policy.holds_max:
                self.holds.add(running(move, self.paths, self.policy, now_s))
        self.relearning = False
        return len(self.holds)


def _repeat(held: Hold, request: MoveRequest) -> MoveAnswer:
    if held.request != request:
        raise Conflict(
            f"move {request.move_id} holds a ticket for another request; every move needs an id "
            "of its own",
            reason="MOVE_ID_REUSED",
            field="move_id",
        )
    return MoveAnswer(held.verdict, held.target, held.claims)
