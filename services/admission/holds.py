"""Hold: what one ticket keeps others from: its receiver, its sender, and the opposite direction.

A hold ends when its move is finished, or at its deadline, whichever comes first: nothing leaks
when its holder dies.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from services.admission.requests import MoveRequest
from worldline.errors import InvariantBroken
from worldline.ticket import TicketClaims
from worldline.verdict import Verdict

#: Nobody is told to ask again sooner than this.
RETRY_MIN_MS = 10


@dataclass(frozen=True, slots=True)
class Hold:
    """A ticket in force, with the request that it answers.

    `expected_end_s` is when its move should be over; `deadline_s` when it ends regardless: the
    time to its wire plus the wire's lease, after which no mover takes bytes under it.
    """

    request: MoveRequest
    claims: TicketClaims
    verdict: Verdict
    issued_at_s: float
    expected_end_s: float
    deadline_s: float

    def remaining_ms(self, now_s: float) -> int:
        """Time until the deadline; never negative."""
        return max(0, round((self.deadline_s - now_s) * 1e3))

    def free_in_ms(self, now_s: float) -> int:
        """When to look again whether this hold is over.

        Its expected end, if that is still ahead. A move that is late may be late by as much
        again: the wait grows with the delay, and the deadline bounds it.
        """
        ahead_s = self.expected_end_s - now_s
        look_s = ahead_s if ahead_s > 0 else -ahead_s
        return max(RETRY_MIN_MS, min(round(look_s * 1e3), self.remaining_ms(now_s)))


def retry_after_ms(holds: Iterable[Hold], ends_needed: int, now_s: float) -> int:
    """When `ends_needed` of the holds should be over.

    Raises:
        InvariantBroken: there are not so many.
    """
    waits_ms = sorted(hold.free_in_ms(now_s) for hold in holds)
    if not 1 <= ends_needed <= len(waits_ms):
        raise InvariantBroken(f"{ends_needed} of {len(waits_ms)} holds were asked for")
    return waits_ms[ends_needed - 1]


class HoldBook:
    """Every hold in force, found by ticket, move, receiver, sender or pair."""

    def __init__(self) -> None:
        self._by_ticket: dict[str, Hold] = {}
        self._by_move: dict[str, Hold] = {}
        # Dicts for their insertion order: a set's order would leak into answers.
        self._into: dict[str, dict[str, Hold]] = {}
        self._out_of: dict[str, dict[str, Hold]] = {}
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
        self._by_ticket[claims.ticket_id] = hold
        self._by_move[claims.move_id] = hold
        self._into.setdefault(claims.target_node_id, {})[claims.ticket_id] = hold
        self._out_of.setdefault(claims.source_node_id, {})[claims.ticket_id] = hold
        heapq.heappush(self._deadlines, (hold.deadline_s, claims.ticket_id))

    def end(self, hold: Hold) -> None:
        """Take a hold out of force."""
        claims = hold.claims
        del self._by_ticket[claims.ticket_id]
        del self._by_move[claims.move_id]
        _discard(self._into, claims.target_node_id, claims.ticket_id)
        _discard(self._out_of, claims.source_node_id, claims.ticket_id)
        # Early ends leave their heap entry behind; rebuild before those are the majority.
        if len(self._deadlines) > 2 * len(self._by_ticket) + 64:
            self._deadlines = [
                (held.deadline_s, ticket_id) for ticket_id, held in self._by_ticket.items()
            ]
            heapq.heapify(self._deadlines)

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
        return self._by_move.get(move_id)

    def into(self, node_id: str) -> tuple[Hold, ...]:
        """Holds whose receiver is that node, oldest first."""
        return tuple(self._into.get(node_id, {}).values())

    def out_of(self, node_id: str) -> tuple[Hold, ...]:
        """Holds whose sender is that node, oldest first."""
        return tuple(self._out_of.get(node_id, {}).values())

    def between(self, source_node_id: str, target_node_id: str) -> tuple[Hold, ...]:
        """Holds of exactly that direction of that pair, oldest first."""
        return tuple(
            hold
            for hold in self.out_of(source_node_id)
            if hold.claims.target_node_id == target_node_id
        )

    def all(self) -> tuple[Hold, ...]:
        """Every hold, oldest first."""
        return tuple(self._by_ticket.values())


def _discard(index: dict[str, dict[str, Hold]], node_id: str, ticket_id: str) -> None:
    held = index[node_id]
    del held[ticket_id]
    if not held:
        del index[node_id]
