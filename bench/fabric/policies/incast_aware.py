"""Incast-aware: the paper's controller; fan-in cap 1, receivers spread, capacity-aware pick."""

from __future__ import annotations

from bench.fabric.cell import Cell
from bench.fabric.policies.believed import Believed
from bench.fabric.policies.policy import Admit, Answer, Policy, Reject, paths
from bench.fabric.workload import Offer, Workload

FAN_IN_MAX = 1


class IncastAware(Policy):
    """One move into a receiver, and only where the path's rate keeps the horizon.

    "A capacity-aware pick over the measured per-path rate matrix" is read as: of all paths into a
    free receiver the one with the highest rate, where a busy sender's egress is shared.
    """

    def __init__(self, cell: Cell, workload: Workload, seed: int) -> None:
        del workload, seed
        self._cell = cell
        self._believed = Believed()

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """The fastest path into a free receiver, if the move would be on time."""
        self._believed.forget_ended(now_s)
        into, out_of = self._believed.into(), self._believed.out_of()
        free = [
            (source, target)
            for source, target in paths(self._cell, offer, into, out_of)
            if into[target] < FAN_IN_MAX
        ]
        if not free:
            return Reject("RECEIVERS_BUSY")
        # The first of the fastest: `paths` has put them in order.
        source, target = max(free, key=lambda path: self._rate(path[0], out_of[path[0]]))
        move_s = offer.size_bytes / self._rate(source, out_of[source])
        if move_s >= offer.horizon_s:
            return Reject("HORIZON_TOO_SHORT")
        self._believed.add(source, target, now_s + move_s)
        return Admit(source, target)

    def _rate(self, source: str, moves_out: int) -> float:
        cell = self._cell
        return min(cell.solo_bytes_per_s(source), cell.egress(source) / (moves_out + 1))
