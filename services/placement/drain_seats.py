"""Drain seats: where each session of a demand goes, so that the moves spread over targets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from services.placement.drain_values import Resident, Seat


def assign_seats(
    residents: Iterable[tuple[Resident, tuple[Seat, ...]]],
    slots_free: Mapping[str, int],
    load: Mapping[str, int],
    refusals: Mapping[tuple[str, str], int],
) -> dict[str, Seat]:
    """A seat for each resident for whom one is left, by session.

    Who has least to choose from chooses first, then the largest. Of the seats that are left, the
    one on the node that refused the session least often, then on the one with the fewest moves of
    this demand (`load` are those under way): a node takes one at a time, so that the most at one
    node are as few as may be; then the session's own order.
    """
    left = dict(slots_free)
    moves = Counter(load)
    assigned: dict[str, Seat] = {}
    order = sorted(residents, key=lambda one: (len(one[1]), -one[0].state_bytes, one[0].session_id))
    for resident, seats in order:
        session_id = resident.session_id
        open_seats = [seat for seat in seats if left.get(seat.pool, 0) > 0]
        if not open_seats:
            continue
        seat = min(
            open_seats,
            key=lambda one: (refusals.get((session_id, one.node_id), 0), moves[one.node_id]),
        )
        left[seat.pool] -= 1
        moves[seat.node_id] += 1
        assigned[session_id] = seat
    return assigned
