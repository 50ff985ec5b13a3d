"""Accept all: no admission; receivers in turn."""

from __future__ import annotations

from bench.fabric.cell import Cell
from bench.fabric.policies.policy import Admit, Answer, Policy
from bench.fabric.workload import Offer, Workload


class AcceptAll(Policy):
    """Every offer goes at once, to the node that follows the last one's in turn."""

    def __init__(self, cell: Cell, workload: Workload, seed: int) -> None:
        del workload, seed
        self._nodes = cell.nodes
        self._turn = 0

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """Always."""
        del now_s
        source = offer.sources[0]
        return Admit(source, self._next(source))

    def _next(self, source: str) -> str:
        for _ in self._nodes:
            target = self._nodes[self._turn % len(self._nodes)]
            self._turn += 1
            if target != source:
                break
        return target
