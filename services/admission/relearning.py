"""Relearning: what an admission that has restarted makes of what it is told.

Its holds died with its process, the moves did not. Until it knows them it grants nothing; a grant
beside a move that it has forgotten would be the incast that it is there to prevent.
"""

from __future__ import annotations

from services.admission.calendar import Interval
from services.admission.holds import Hold
from services.admission.paths import PathBook
from services.admission.policy import Policy
from services.admission.requests import RememberedPath, RunningMove
from worldline.admissibility.path_rate import TransferSample
from worldline.ticket import MovePurpose, TicketClaims
from worldline.verdict import RejectReason, Verdict

#: Claims of a move that was only told of: nobody signs them.
_TOPOLOGY_UNKNOWN = b"relearned"


def not_yet(policy: Policy) -> Verdict:
    """The answer to everybody until then."""
    return Verdict.reject(
        RejectReason.RELEARNING,
        "admission has restarted and does not know what is under way; tell it (Relearn), or ask "
        "through placement, which does",
        retry_after_ms=policy.probe_retry_ms,
    )


def remember(path: RememberedPath, paths: PathBook, policy: Policy, now_s: float) -> None:
    """Take a remembered rate as one measurement of that age; never over one of our own."""
    known = paths.get(path.source_node_id, path.target_node_id)
    if known is not None or path.age_ms > policy.path_age_max_ms:
        return
    around_ms = 1e3 + path.setup_ms if path.setup_ms > 0 else 0.0
    in_a_second = TransferSample(max(1, round(path.rate_bytes_per_s)), 1e3, frozen_ms=around_ms)
    pair = (path.source_node_id, path.target_node_id)
    paths.teach(pair, in_a_second, now_s - path.age_ms / 1e3, policy.path_age_max_ms)


def running(move: RunningMove, paths: PathBook, policy: Policy, now_s: float) -> Hold:
    """The hold of a move that is under way.

    As if it had the wire from now on: when it began, nobody knows, and too long keeps others off
    for a while where too short would send them into it.
    """
    path = paths.get(move.source_node_id, move.target.node_id)
    if path is None:
        rate = policy.unmeasured_rate_bytes_per_s
        move_ms = move.extent_bytes / rate * 1e3
    else:
        rate = path.mean_rate_bytes_per_s
        move_ms = path.charged_cost.t_migrate_ms(move.extent_bytes)
    claims = TicketClaims(
        ticket_id=move.ticket_id,
        move_id=move.move_id,
        session_id=move.session_id,
        epoch=move.epoch,
        source_node_id=move.source_node_id,
        target_node_id=move.target.node_id,
        extent_bytes_max=move.extent_bytes,
        topology_hash=_TOPOLOGY_UNKNOWN,
        purpose=MovePurpose.SESSION if move.session_id else MovePurpose.PROBE,
        issued_at_ms=int(now_s * 1e3),
        valid_for_ms=policy.valid_for_ms,
        lease_ms=policy.lease_ms(move_ms),
    )
    wire = Interval(now_s, now_s + min(move_ms, float(move.remaining_ms)) / 1e3)
    deadline_s = now_s + move.remaining_ms / 1e3
    verdict = Verdict.admit("admitted before admission restarted")
    return Hold(claims, move.target, wire, deadline_s, verdict, rate)
