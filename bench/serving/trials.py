"""Trials: every arm of an experiment over the same seeds, and their means beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.serving.cell import Cell, Outcome, play_cell
from bench.serving.policies.table import Arm

#: The paper has three trials of each cell.
SEEDS = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trials:
    """One arm in one cell: an outcome for each seed."""

    arm: str
    cell: Cell
    outcomes: tuple[Outcome, ...]

    def mean(self, quantity: str) -> float:
        """Of an `Outcome`'s quantity, over the trials."""
        return statistics.mean(float(getattr(each, quantity)) for each in self.outcomes)

    def worst(self, quantity: str) -> float:
        """The largest of any trial."""
        return max(float(getattr(each, quantity)) for each in self.outcomes)

    def to_json(self) -> dict[str, object]:
        """For machines; the cell is in the document once for each period."""
        return {
            "arm": self.arm,
            "period_s": self.cell.period_s,
            "quantum_s": self.cell.timing.quantum_s,
            "floor_steps": self.cell.floor_steps,
            "trials": [each.to_json() for each in self.outcomes],
        }


def trials(cell: Cell, arm: Arm, seeds: Sequence[int], say: Say) -> Trials:
    """The same devices, workload and stalls for every arm that gets the same seeds."""
    say(f"{arm.name}, a block every {cell.period_s * 1e3:g} ms")
    return Trials(arm.name, cell, tuple(play_cell(cell, arm, seed) for seed in seeds))
