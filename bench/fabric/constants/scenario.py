"""Scenario: sessions under a tight horizon, on paths that change, all at once, or once only."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from bench.fabric.cell import GBIT_PER_S, Cell
from bench.fabric.workload import Workload, make_workload

#: Below what the nodes carry, so that a reject is one of the estimates and not of the load.
LOAD = 0.6
#: 12 paths, and some 30 moves on each.
MOVES = 360
#: Whole states over each path beforehand, so that it is known well.
WARM_MOVES = 24
#: Links wider than flows, so that a flow can become faster as well; all senders alike.
CELL = Cell(
    egress_bytes_per_s=200 * GBIT_PER_S,
    slow_egress_bytes_per_s=200 * GBIT_PER_S,
    ingress_bytes_per_s=200 * GBIT_PER_S,
)
#: A quiet path is charged about a tenth above its mean: under a horizon of 1.15 it is admitted.
_TIGHT = 1.15


@dataclass(frozen=True, slots=True)
class Scenario:
    """From the move at `changed_at` on every move costs `cost` times as much; `horizon` times
    what it cost before is the time that it has.

    On all paths at once, or with `sender` on those out of it; with `once` it is one move only.
    """

    cost: float
    horizon: float
    sender: str | None = None
    once: bool = False
    changed_at: int = MOVES // 3

    def slower(self, cell: Cell) -> dict[tuple[str, str], float]:
        """What every path costs since the change, in times of before."""
        return {
            (source, target): self.cost
            for source, target in itertools.permutations(cell.nodes, 2)
            if self.sender in (None, source)
        }

    def workload(self, cell: Cell, seed: int) -> Workload:
        """Pinned sessions; each has its horizon from its own sender's rate."""
        made = make_workload(cell, LOAD, seed, pinned=True, moves=MOVES)
        offers = tuple(
            replace(offer, horizon_s=self.horizon * cell.solo_s(offer.sources[0]))
            for offer in made.offers
        )
        return Workload(offers, made.draws)


#: The sender that changes where only one does.
_SENDER = CELL.nodes[0]
#: 7 % and 30 % off, both ways: with the tightest horizon that admits at all before the change, then
#: with such that the old constant admits what misses, and with such that nothing need be rejected.
SCENARIOS = (
    Scenario(1.07, _TIGHT),
    Scenario(1.07, 1.3),
    Scenario(1.3, _TIGHT, _SENDER),
    Scenario(1.3, 1.25, _SENDER),
    Scenario(1.3, _TIGHT),
    Scenario(1.3, 1.25),
    Scenario(1.3, 1.5),
    Scenario(1.3, 1.8),
    Scenario(0.93, _TIGHT),
    Scenario(0.7, _TIGHT),
    Scenario(3.0, _TIGHT, once=True),
    Scenario(3.0, 1.3, once=True),
    Scenario(3.0, 1.8, once=True),
)
