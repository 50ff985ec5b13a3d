"""Reference: the paper's figures for this experiment (section 6.3), beside the simulated ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench.fabric.cell import Cell
from bench.fabric.policies.table import INCAST_AWARE, NAIVE, POLICIES
from bench.fabric.replica import Replica, replicas

#: A figure further off than this is not reproduced.
RELATIVE_MAX = 0.15
#: Of the simulated experiments, this part lies below and above what is called their range.
RANGE_TAIL = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the paper. `fitted`: a constant of the cell was chosen by it."""

    policy: str
    load: float
    quantity: str
    paper: float
    fitted: bool = False


#: The arms were run "at the same load"; the controller's five misses are those of its 2x.
FIGURES = (
    Figure(NAIVE, 2.0, "on_time", 10.0),
    Figure(NAIVE, 2.0, "missed", 57.0),
    Figure(NAIVE, 2.0, "rejected", 5.0),
    Figure(NAIVE, 2.0, "goodput_gbit_per_s", 4.4),
    Figure(INCAST_AWARE, 1.0, "missed", 0.0, fitted=True),
    Figure(INCAST_AWARE, 1.4, "missed", 0.0, fitted=True),
    Figure(INCAST_AWARE, 2.0, "on_time", 35.0),
    Figure(INCAST_AWARE, 2.0, "missed", 5.0),
    Figure(INCAST_AWARE, 2.0, "rejected", 32.0),
    Figure(INCAST_AWARE, 2.0, "goodput_gbit_per_s", 72.7),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of the paper and the simulated experiments.

    `simulated` is their mean, and their median where the paper has none at all: it saw one
    experiment, and a mean is above 0 as soon as one of many is. `relative` is None there.
    """

    figure: Figure
    simulated: float
    least: float
    most: float
    relative: float | None
    reproduced: bool

    @property
    def in_range(self) -> bool:
        """Whether a single experiment, as the paper's was, may well have come to its figure."""
        return self.least <= self.figure.paper <= self.most

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {**asdict(self), "in_range": self.in_range}


def compare(
    cell: Cell, seeds: Sequence[int], say: Callable[[str], None] = lambda text: None
) -> list[Comparison]:
    """Every figure of the paper, simulated."""
    say(f"the paper's arms, {len(seeds)} seeds")
    arms = dict.fromkeys((figure.policy, figure.load) for figure in FIGURES)
    played = {
        (policy, load): replicas(cell, load, POLICIES[policy], seeds) for policy, load in arms
    }
    return [compared(figure, played[figure.policy, figure.load]) for figure in FIGURES]


def compared(figure: Figure, experiments: Sequence[Replica]) -> Comparison:
    """One figure beside those of the experiments."""
    values = sorted(float(getattr(each, figure.quantity)) for each in experiments)
    tail = int(RANGE_TAIL * len(values))
    if figure.paper == 0:
        simulated, relative = float(statistics.median_high(values)), None
        reproduced = simulated == 0
    else:
        simulated = statistics.mean(values)
        relative = (simulated - figure.paper) / figure.paper
        reproduced = abs(relative) <= RELATIVE_MAX
    return Comparison(figure, simulated, values[tail], values[-1 - tail], relative, reproduced)
