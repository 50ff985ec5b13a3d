"""Replan: what becomes of planned wires when a move comes in between, or is over.

What was promised is kept: a plan moves later only for bulk that gives way to an interactive move,
and everybody else's only earlier. The movers' wire queues do the same with the wires themselves.
"""

from __future__ import annotations

from services.admission.holds import Hold, HoldBook
from services.admission.plan import Needs, Wish, plan_wire
from services.admission.policy import Policy


def give_way(newcomer: Hold, holds: HoldBook, policy: Policy, now_s: float) -> None:
    """Plan waiting bulk again where an interactive move has taken its wire."""
    if newcomer.claims.bulk:
        return
    for hold in _neighbours(newcomer, holds, now_s):
        overlaps = (
            hold.wire.begin_s < newcomer.wire.end_s and newcomer.wire.begin_s < hold.wire.end_s
        )
        if hold.claims.bulk and overlaps:
            holds.replan(hold, _begin_s(hold, holds, policy, now_s))


def close_up(ended: Hold, holds: HoldBook, policy: Policy, now_s: float) -> None:
    """Plan earlier whoever waits for what a move held, in the order of their wires."""
    for hold in _neighbours(ended, holds, now_s):
        begin_s = _begin_s(hold, holds, policy, now_s)
        if begin_s < hold.wire.begin_s:
            give_way(holds.replan(hold, begin_s), holds, policy, now_s)


def _neighbours(of: Hold, holds: HoldBook, now_s: float) -> list[Hold]:
    """Who waits at the same receiver, sender, pair or verifier, the soonest first."""
    source, target = of.claims.source_node_id, of.target.node_id
    shared = (
        holds.into(target),
        holds.out_of(source),
        holds.between(target, source),
        holds.on_host(of.target.host_id),
    )
    near = {
        hold.claims.ticket_id: hold
        for held in shared
        for hold in held
        if hold.waits(now_s) and hold.claims.ticket_id != of.claims.ticket_id
    }
    return sorted(near.values(), key=lambda hold: (hold.claims.bulk, hold.wire.begin_s))


def _begin_s(hold: Hold, holds: HoldBook, policy: Policy, now_s: float) -> float:
    claims = hold.claims
    wish = Wish(hold.target, hold.wire.length_s, hold.rate_bytes_per_s)
    source, ticket_id = claims.source_node_id, claims.ticket_id
    needs = Needs(source, holds, policy, now_s, bulk=claims.bulk, but=ticket_id)
    return plan_wire(needs.of(wish), wish.length_s, now_s).begin_s
