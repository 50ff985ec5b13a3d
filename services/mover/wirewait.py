"""Wire wait: what each end of a move asks its wires for by its ticket, and how long it waits. Pure.

The horizon runs from when the source asks for its egress; the offer says how long ago that was,
because durations and not times cross hosts. A ticket without a horizon waits for as long as it is
valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.mover.wireask import WireAsk, WireDirection
from worldline.ticket import TicketClaims


@dataclass(frozen=True, slots=True)
class WireWait:
    """One wait for one end of a wire; it ends at `until_s` (own monotonic clock) at the latest."""

    ask: WireAsk
    until_s: float


def egress_wait(claims: TicketClaims, grant_by_s: float, asked_s: float) -> WireWait:
    """The source's, who asks at `asked_s`; its ticket is valid until `grant_by_s`."""
    return _wait(claims, grant_by_s, asked_s, WireDirection.OUT_OF, claims.target_node_id)


def ingress_wait(
    claims: TicketClaims, grant_by_s: float, offered_s: float, waited_s: float
) -> WireWait:
    """The target's: offered at `offered_s`, by a source that had waited for `waited_s`."""
    asked_s = offered_s - waited_s
    return _wait(claims, grant_by_s, asked_s, WireDirection.INTO, claims.source_node_id)


def offer_by_s(claims: TicketClaims, grant_by_s: float) -> float:
    """No offer comes later: the source asked while the ticket was valid, and had to wait."""
    return grant_by_s + max(0.0, claims.horizon_ms - claims.move_ms) / 1e3


def _wait(
    claims: TicketClaims,
    grant_by_s: float,
    asked_s: float,
    direction: WireDirection,
    peer_node_id: str,
) -> WireWait:
    has_horizon = claims.horizon_ms > 0
    deadline_s = asked_s + claims.horizon_ms / 1e3 if has_horizon else math.inf
    ask = WireAsk(
        wire_id=claims.ticket_id,
        direction=direction,
        peer_node_id=peer_node_id,
        bulk=claims.bulk,
        deadline_s=deadline_s,
        move_s=claims.move_ms / 1e3,
        wire_s=claims.wire_ms / 1e3,
    )
    return WireWait(ask, deadline_s if has_horizon else grant_by_s)
