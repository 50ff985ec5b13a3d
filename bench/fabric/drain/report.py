"""Report: makespans against rounds x T_solo, and what a drain does to interactive moves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench.columns import columns
from bench.fabric.cell import Cell
from bench.fabric.drain.demand import Residents, drain, scattered
from bench.fabric.drain.run import DrainRun
from bench.fabric.workload import MOVES, Workload, make_workload

#: Of interactive moves, in times of what the cell's nodes carry.
LOADS = (0.0, 0.25, 0.5)
Demand = Callable[[Cell, int], Residents]
DEMANDS: dict[str, Demand] = {
    "drain of one node": lambda cell, seed: drain(cell, 1),
    "drain of three": lambda cell, seed: drain(cell, 3),
    "scattered": scattered,
}
_HEADINGS = (
    "BULK", "LOAD", "ROUNDS", "PLANNED s", "MAKESPAN s", "OVER", "OFFERED", "ADMITTED", "ON TIME",
    "ON TIME/ADMITTED", "LATER", "WITHOUT BULK",
)  # fmt: skip
_FOOT = (
    "Means over {seeds} seeds. PLANNED: rounds x T_solo, of the demand's slowest path. OFFERED to "
    "ON TIME: interactive moves,\nat LOAD times what the nodes carry, each from the node where its "
    "session is. LATER: refused after a wait, no miss. WITHOUT BULK: of the same, on time with "
    "no drain."
)


@dataclass(frozen=True, slots=True)
class Drained:
    """One run."""

    rounds: int
    planned_s: float
    makespan_s: float
    offered: int
    admitted: int
    on_time: int
    #: Admitted and refused their wire, before their worlds stood still.
    later: int
    on_time_without: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One demand beside one load of interactive moves."""

    demand: str
    load: float
    runs: list[Drained]


def summaries(cell: Cell, seeds: Sequence[int]) -> list[Summary]:
    """Every demand beside every load."""
    return [
        Summary(name, load, [drained(cell, demand, load, seed) for seed in seeds])
        for name, demand in DEMANDS.items()
        for load in LOADS
    ]


def drained(cell: Cell, demand: Demand, load: float, seed: int) -> Drained:
    """One demand, once with and once without its bulk moves."""
    workload = (
        make_workload(cell, load, seed, pinned=True, moves=MOVES) if load else Workload((), {})
    )
    run = DrainRun(cell, demand(cell, seed), workload, seed)
    outcome = run.play()
    alone = DrainRun(cell, (), workload, seed).play()
    return Drained(
        rounds=len(run.plan.rounds),
        planned_s=run.planned_s,
        makespan_s=max(done.wire_ended_s for done in run.bulk),
        offered=len(workload.offers),
        admitted=len(outcome.done),
        on_time=sum(done.on_time for done in outcome.done),
        later=outcome.rejected_later.total(),
        on_time_without=sum(done.on_time for done in alone.done),
    )


def table(made: Sequence[Summary], seeds: int) -> str:
    """All in columns."""
    lines = [_HEADINGS, *(_cells(summary) for summary in made)]
    return f"{columns(lines, left={0})}\n\n{_FOOT.format(seeds=seeds)}"


def document(made: Sequence[Summary], cell: Cell, seeds: int) -> dict[str, object]:
    """For machines: every run."""
    return {"seeds": seeds, "cell": asdict(cell), "drains": [asdict(each) for each in made]}


def _cells(summary: Summary) -> tuple[str, ...]:
    def mean(name: str) -> float:
        return statistics.fmean(float(getattr(run, name)) for run in summary.runs)

    over = statistics.mean(run.makespan_s / run.planned_s - 1 for run in summary.runs)
    bulk = (
        summary.demand,
        f"{summary.load:g}x" if summary.load else "",
        f"{mean('rounds'):.1f}",
        f"{mean('planned_s'):.2f}",
        f"{mean('makespan_s'):.2f}",
        f"{over:+.1%}",
    )
    if not summary.load:
        return (*bulk, "", "", "", "", "", "")
    return (
        *bulk,
        f"{mean('offered'):.1f}",
        f"{mean('admitted'):.1f}",
        f"{mean('on_time'):.1f}",
        f"{mean('on_time') / mean('admitted'):.1%}",
        f"{mean('later'):.1f}",
        f"{mean('on_time_without'):.1f}",
    )
