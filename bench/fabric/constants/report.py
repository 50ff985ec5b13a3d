"""Report: what every change cost, over all seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.columns import columns
from bench.fabric.cell import Cell
from bench.fabric.constants.measure import Measured, measure
from bench.fabric.constants.policies import FixedConstants, ProbedAdmission
from bench.fabric.constants.scenario import Scenario

_HEADINGS = (
    "COST", "OF", "HORIZON", "OFFERED", "ADMITTED", "MISSED", "ON A PATH*", "IN FLIGHT",
    "WRONG REJECTS", "PROBES", "UNTIL RIGHT*", "PATHS WRONG", "FIXED: MISSED",
)  # fmt: skip
_FOOT = (
    "Means over {seeds} seeds, after the change; *: the most in any seed. COST and HORIZON in "
    "times of what a move\ncost before. ON A PATH: misses of a single one; a sender has 3 paths, "
    "all have 12. IN FLIGHT: when it changed.\nWRONG REJECTS: for an estimate, although the move "
    "would have been in time. UNTIL RIGHT: samples, moves and\nprobes, that a path took until its "
    "estimate was right, within 5 %; PATHS WRONG: those whose last estimate is\nnot. FIXED: the "
    "same with constants that are never learned again."
)


@dataclass(frozen=True, slots=True)
class Summary:
    """One scenario under the real core and under fixed constants."""

    scenario: Scenario
    learned: list[Measured]
    fixed: list[Measured]


def summarize(cell: Cell, scenario: Scenario, seeds: Sequence[int]) -> Summary:
    """Play every seed under both."""
    return Summary(
        scenario,
        [measure(cell, scenario, ProbedAdmission, seed) for seed in seeds],
        [measure(cell, scenario, FixedConstants, seed) for seed in seeds],
    )


def table(summaries: Sequence[Summary], seeds: int) -> str:
    """All scenarios in columns."""
    lines = [_HEADINGS, *(_cells(summary) for summary in summaries)]
    return f"{columns(lines, left={0, 1})}\n\n{_FOOT.format(seeds=seeds)}"


def document(summaries: Sequence[Summary], seeds: int) -> dict[str, object]:
    """For machines: every run."""
    return {"seeds": seeds, "scenarios": [asdict(summary) for summary in summaries]}


def _cells(summary: Summary) -> tuple[str, ...]:
    scenario, learned = summary.scenario, summary.learned

    def mean(name: str, of: Sequence[Measured] = learned) -> str:
        return f"{statistics.mean(getattr(each, name) for each in of):.1f}"

    def most(name: str) -> str:
        return str(max(getattr(each, name) for each in learned))

    return (
        f"{scenario.cost:g}x",
        "one move" if scenario.once else "one sender" if scenario.sender else "all paths",
        f"{scenario.horizon:g}x",
        mean("offered"),
        mean("admitted"),
        mean("missed"),
        most("missed_on_one_path"),
        mean("in_flight"),
        mean("rejected_wrongly"),
        mean("probes"),
        most("samples_until_right"),
        mean("paths_wrong"),
        mean("missed", summary.fixed),
    )
