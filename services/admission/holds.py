"""Hold: what one ticket keeps from others, all of it for one planned interval of the wire.

Receiver ingress, sender egress, the opposite direction of the pair, verification on the receiving
host, and a shadow slot, but for a probe's, which gives way. A hold ends when its move is finished,
or at its deadline, whichever comes first: nothing leaks when its holder dies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from services.admission.calendar import Interval
from services.admission.requests import MoveRequest, MoveTarget
from worldline.errors import InvariantBroken
from worldline.ticket import MovePurpose, TicketClaims
from worldline.verdict import Verdict

#: Nobody is told to ask again sooner than this.
RETRY_MIN_MS = 10


class Hold(NamedTuple):
    """A ticket in force.

    `wire` is when its move is planned to have the wire; `deadline_s` when the hold ends
    regardless: after the longest that the ticket's movers may take bytes under it. `request` is
    None where admission was told of the move after a restart.
    """

    claims: TicketClaims
    target: MoveTarget
    wire: Interval
    deadline_s: float
    verdict: Verdict
    #: What its bytes arrive at, and so must be digested at.
    rate_bytes_per_s: float
    request: MoveRequest | None = None
    client_id: str = ""

    def remaining_ms(self, now_s: float) -> int:
        """Time until the deadline; never negative."""
        return max(0, round((self.deadline_s - now_s) * 1e3))

    def waits(self, now_s: float) -> bool:
        """Whether its wire is planned for later."""
        return self.wire.begin_s > now_s


#: By whatever is kept: the holds that keep it, by ticket. Dicts for their insertion order: a set's
#: order would leak into answers.
_Index = dict[Hashable, dict[str, Hold]]


class HoldBook:
    """Every hold in force, found by ticket, move, or by what it keeps."""

    def __init__(self) -> None:
        self._by_ticket: dict[str, Hold] = {}
        self._by_move: dict[str, str] = {}
        self._into: _Index = {}
        self._out_of: _Index = {}
        self._between: _Index = {}
        self._on_host: _Index = {}
        self._on_slots: _Index = {}
        self._of_client: _Index = {}
        #: (deadline, ticket); entries of holds that ended early are skipped when they surface.
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._by_ticket)

    def add(self, hold: Hold) -> None:
        """Take a hold into force.

        Raises:
            InvariantBroken: its ticket or its move holds already.
        """
        claims = hold.claims
        if claims.ticket_id in self._by_ticket or claims.move_id in self._by_move:
            raise InvariantBroken(f"move {claims.move_id} holds already")
        self._by_move[claims.move_id] = claims.ticket_id
        self._put(hold)
        heapq.heappush(self._deadlines, (hold.deadline_s, claims.ticket_id))

    def replan(self, hold: Hold, begin_s: float) -> Hold:
        """Plan a hold's wire for another time; returns the hold as it is now."""
        planned = hold._replace(wire=hold.wire.beginning(begin_s))
        self._put(planned)
        return planned

    def _put(self, hold: Hold) -> None:
        ticket_id = hold.claims.ticket_id
        self._by_ticket[ticket_id] = hold
        for index, key in self._kept_by(hold):
            held = index.get(key)
            if held is None:
                index[key] = {ticket_id: hold}
            else:
                held[ticket_id] = hold

    def end(self, hold: Hold) -> None:
        """Take a hold out of force."""
        ticket_id = hold.claims.ticket_id
        del self._by_ticket[ticket_id]
        del self._by_move[hold.claims.move_id]
        for index, key in self._kept_by(hold):
            held = index[key]
            del held[ticket_id]
            if not held:
                del index[key]
        # Early ends leave their heap entry behind; rebuild before those are the majority.
        if len(self._deadlines) > 2 * len(self._by_ticket) + 64:
            self._deadlines = [(held.deadline_s, name) for name, held in self._by_ticket.items()]
            heapq.heapify(self._deadlines)

    def _kept_by(self, hold: Hold) -> list[tuple[_Index, Hashable]]:
        source, target = hold.claims.source_node_id, hold.target
        kept: list[tuple[_Index, Hashable]] = [
            (self._into, target.node_id),
            (self._out_of, source),
            (self._between, (source, target.node_id)),
            (self._of_client, hold.client_id),
        ]
        # A probe's slot gives way.
        if hold.claims.purpose is not MovePurpose.PROBE:
            kept.append((self._on_slots, (target.node_id, target.engine_id)))
        if target.host_id and target.digest_rate_bytes_per_s > 0:
            kept.append((self._on_host, target.host_id))
        return kept

    def expire(self, now_s: float) -> list[Hold]:
        """End every hold whose deadline has come; returns them, earliest first."""
        ended: list[Hold] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, ticket_id = heapq.heappop(self._deadlines)
            hold = self._by_ticket.get(ticket_id)
            if hold is not None:
                self.end(hold)
                ended.append(hold)
        return ended

    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do at the earliest; None while nothing is held."""
        return self._deadlines[0][0] if self._by_ticket else None

    def of_ticket(self, ticket_id: str) -> Hold | None:
        """The hold of a ticket."""
        return self._by_ticket.get(ticket_id)

    def of_move(self, move_id: str) -> Hold | None:
        """The hold of a move."""
        return self._by_ticket.get(self._by_move.get(move_id, ""))

    def into(self, node_id: str) -> tuple[Hold, ...]:
        """Holds whose receiver is that node, oldest first."""
        return _all(self._into.get(node_id))

    def out_of(self, node_id: str) -> tuple[Hold, ...]:
        """Holds whose sender is that node, oldest first."""
        return _all(self._out_of.get(node_id))

    def between(self, source_node_id: str, target_node_id: str) -> tuple[Hold, ...]:
        """Holds of exactly that direction of that pair, oldest first."""
        return _all(self._between.get((source_node_id, target_node_id)))

    def on_host(self, host_id: str) -> tuple[Hold, ...]:
        """Holds whose bytes that host's cores digest, oldest first."""
        return _all(self._on_host.get(host_id))

    def on_slots(self, target: MoveTarget) -> int:
        """How many holds have a shadow slot of that receiver."""
        return len(self._on_slots.get((target.node_id, target.engine_id), ()))

    def of_client(self, client_id: str) -> int:
        """How many holds one client has."""
        return len(self._of_client.get(client_id, ()))

    def all(self) -> tuple[Hold, ...]:
        """Every hold, oldest first."""
        return tuple(self._by_ticket.values())


def _all(held: dict[str, Hold] | None) -> tuple[Hold, ...]:
    # Most resources are idle most of the time.
    return tuple(held.values()) if held else ()


def retry_after_ms(at_s: float, now_s: float) -> int:
    """What to tell whoever should ask again at that moment."""
    # A millisecond past it: rounded down, whoever obeys would be a moment too early.
    return max(RETRY_MIN_MS, math.ceil((at_s - now_s) * 1e3) + 1)


def ended_s(holds: Iterable[Hold], now_s: float) -> float:
    """When the first of these moves should be over; one that is late may be so by as much again."""
    return min(
        min(max(hold.wire.end_s, 2 * now_s - hold.wire.end_s), hold.deadline_s) for hold in holds
    )
