"""Drain rounds: the moves of a demand that have not begun, planned, and planned anew. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.placement.drain_seats import assign_seats
from services.placement.drain_values import Resident, Seat
from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan, plan_bulk
from worldline.admissibility.condition import PathCost

#: Only the sizes' ratio counts in a plan: any rate gives the same rounds.
_COST = PathCost(1e9)


class DrainRounds:
    """A plan that is kept as long as it holds: its rounds are what bounds the makespan."""

    def __init__(self) -> None:
        self.plan: BulkPlan = plan_bulk((), _COST)
        #: For whom no slot was left.
        self.unseated: frozenset[str] = frozenset()
        self._moves: dict[str, BulkMove] = {}
        self._broken = False
        #: Free slots by pool, as they were then.
        self._slots_free: dict[str, int] = {}

    def broken(self) -> None:
        """A move of it was refused: plan anew at the next look."""
        self._broken = True

    def settle(
        self,
        seats: Mapping[str, tuple[Resident, tuple[Seat, ...]]],
        slots_free: Mapping[str, int],
        load: Mapping[str, int],
        refusals: Mapping[tuple[str, str], int],
    ) -> None:
        """Have a plan for these sessions with their seats; `load` counts moves under way."""
        if self._holds(seats, slots_free):
            # Who had no seat to choose from meanwhile is new once there is one: as many slots may
            # be free then as when none was left for it.
            self.unseated &= seats.keys()
            return
        assigned = assign_seats(seats.values(), slots_free, load, refusals)
        self._moves = {
            name: BulkMove(name, one.node_id, assigned[name].node_id, max(1, one.state_bytes))
            for name, (one, _) in seats.items()
            if name in assigned
        }
        self.plan = plan_bulk(self._moves.values(), _COST)
        self.unseated = frozenset(seats.keys() - assigned.keys())
        self._slots_free = dict(slots_free)
        self._broken = False

    def left(self, begun: Collection[str]) -> int:
        """Rounds with a move that has not begun."""
        return sum(any(move.move_id not in begun for move in one) for one in self.plan.rounds)

    def _holds(
        self,
        seats: Mapping[str, tuple[Resident, tuple[Seat, ...]]],
        slots_free: Mapping[str, int],
    ) -> bool:
        new = seats.keys() - self._moves.keys()
        if self._broken or new - self.unseated:
            return False
        if new and self._slots_free != dict(slots_free):
            return False
        return all(
            move.source_node_id == one.node_id
            and any(seat.node_id == move.target_node_id for seat in usable)
            for name, (one, usable) in seats.items()
            if (move := self._moves.get(name)) is not None
        )
