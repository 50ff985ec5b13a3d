"""Experiment: every load, every policy, every seed; the same workloads and stalls for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.fabric.cell import Cell
from bench.fabric.policies.oracle import Oracle
from bench.fabric.policies.table import ORACLE, OURS, POLICIES
from bench.fabric.run import Outcome, Run
from bench.fabric.tally import Best, Row, on_time, tally
from bench.fabric.workload import make_workload

LOADS = (1.0, 1.4, 2.0, 4.0)
SEEDS = 5


def experiment(
    cell: Cell,
    loads: Sequence[float] = LOADS,
    seeds: Sequence[int] = range(SEEDS),
    *,
    pinned: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """One row for each load and policy."""
    rows: list[Row] = []
    for load in loads:
        say(f"load {load:g}x, {len(seeds)} seeds")
        outcomes, bound = play_all(cell, load, seeds, pinned=pinned)
        best = Best(oracle=on_time(outcomes[ORACLE]), bound=bound)
        rows += [tally(load, name, outcomes[name], best) for name in POLICIES]
    return rows


def play_all(
    cell: Cell, load: float, seeds: Sequence[int], *, pinned: bool = False
) -> tuple[dict[str, dict[int, Outcome]], float]:
    """By policy and seed, what each made of one load; and the mean of what nobody could exceed.

    The oracle comes last and is told what the real core did, so that it does no worse.
    """
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in POLICIES}
    bounds = 0
    for seed in seeds:
        workload = make_workload(cell, load, seed, pinned=pinned)
        for name, make in POLICIES.items():
            if name != ORACLE:
                outcomes[name][seed] = Run(cell, workload, make, seed).play()
        oracle = Oracle(cell, workload, seed, known=outcomes[OURS][seed].done)
        outcomes[ORACLE][seed] = Run(cell, workload, lambda *_, o=oracle: o, seed).play()
        bounds += oracle.bound
    return outcomes, bounds / len(seeds)
