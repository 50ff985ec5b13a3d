"""Placement: the same contract on devices and bindings that differ only in their quantum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.serving.cell import FULL_STEPS, Cell
from bench.serving.device import A100_S, A100_WRONG_NUMA_S, RTX_5090_S
from bench.serving.policies.table import ARMS, WORLDLINE
from bench.serving.trials import Say, Trials, trials


@dataclass(frozen=True, slots=True)
class Placement:
    """One device, and what the paper says of it."""

    name: str
    quantum_s: float
    period_s: float
    floor_steps: int
    paper: str


PLACEMENTS = (
    Placement("A100, own NUMA node", A100_S, 0.6, 2, "feasible"),
    Placement("A100, wrong NUMA node", A100_WRONG_NUMA_S, 0.6, 2, "~90 % missed"),
    Placement(
        "RTX 5090", RTX_5090_S, 0.4, FULL_STEPS, "24 ms of slack are zero usable bulk (section 7)"
    ),
)


def placement(base: Cell, seeds: Sequence[int], say: Say) -> list[tuple[Placement, Trials]]:
    """Each of them under the engine's schedule, with a bulk job that never ends."""
    found = []
    for each in PLACEMENTS:
        cell = replace(
            base,
            period_s=each.period_s,
            floor_steps=each.floor_steps,
            bulk_blocks=None,
            timing=replace(base.timing, quantum_s=each.quantum_s),
        )
        found.append((each, trials(cell, ARMS[WORLDLINE], seeds, say)))
    return found
