"""Report: rows from timings: rates from sums, latencies from all decisions. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from bench.decisions.parts import Part
from bench.decisions.run import Timings
from bench.row import Row, RowSpec, at_least, below

RATE = RowSpec("decisions.rate", "1/s", at_least(5_000))
P99 = RowSpec("decisions.p99", "ms", below(5))
P50 = RowSpec("decisions.p50", "ms")
MAX = RowSpec("decisions.max", "ms")
CPU_RATE = RowSpec("decisions.cpu-rate", "1/s")
CPU_P99 = RowSpec("decisions.cpu-p99", "ms")
SIGNED_RATE = RowSpec("decisions.signed-rate", "1/s")
PLACEMENT = RowSpec("decisions.placement", "ms")
ADMISSION = RowSpec("decisions.admission", "ms")
SIGNING = RowSpec("decisions.signing", "ms")
FINISHING = RowSpec("decisions.finishing", "ms")
KEEPING = RowSpec("decisions.keeping", "ms")
LEARNING = RowSpec("decisions.learning", "ms")


def rows(runs: Sequence[Timings], learning: Part) -> list[Row]:
    """The table's rows; medians are of `runs`, latencies of all their decisions together."""
    every = [one.decisions for one in runs]
    wall = sorted(value for one in every for value in one.wall)
    cpu = sorted(value for one in every for value in one.cpu)
    latencies = [
        spec.measured(quantile(times, share) / 1e6, len(runs), detail)
        for spec, times, share, detail in (
            (P50, wall, 0.5, ""),
            (P99, wall, 0.99, f"{len(wall)} decisions"),
            (MAX, wall, 1.0, ""),
            (CPU_P99, cpu, 0.99, ""),
        )
    ]
    return [
        _rate(RATE, runs, _wall, verdicts(runs)),
        *latencies[:3],
        _rate(CPU_RATE, runs, _cpu, "of the processor's time alone"),
        latencies[3],
        _rate(SIGNED_RATE, runs, lambda one: _wall(one) + sum(one.signing.wall), ""),
        _part(PLACEMENT, [one.placement for one in runs], "its share: the choice of candidates"),
        _part(ADMISSION, [one.admission for one in runs], "its share: verdict and claims"),
        _part(SIGNING, [one.signing for one in runs], "of a ticket, apart"),
        _part(FINISHING, [one.finishing for one in runs], "the end of a move, and what it teaches"),
        _part(
            KEEPING, [one.keeping for one in runs], "the shortlist learns of a move's begin or end"
        ),
        _part(LEARNING, [learning], "of all sessions, once at the start; not in the rate"),
    ]


def _wall(one: Timings) -> int:
    return sum(sum(part.wall) for part in (one.placement, one.admission, *one.upkeep))


def _cpu(one: Timings) -> int:
    return sum(sum(part.cpu) for part in (one.placement, one.admission, *one.upkeep))


def quantile(ordered: Sequence[int], share: float) -> int:
    """The least value that so many are not above (nearest rank)."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def verdicts(runs: Sequence[Timings]) -> str:
    """How many of which, and how many holds were in force meanwhile."""
    counts: Counter[str] = sum((one.verdicts for one in runs), Counter())
    holds = statistics.median(count for one in runs for count in one.holds)
    found = ", ".join(f"{label} {count}" for label, count in counts.most_common())
    return f"{holds:.0f} holds in force; {found}"


def _rate(
    spec: RowSpec, runs: Sequence[Timings], busy_ns: Callable[[Timings], int], detail: str
) -> Row:
    """Decisions a second; what else the same process has to see to counts as time."""
    rates = [len(one.placement) / busy_ns(one) * 1e9 for one in runs]
    spread = f"{min(rates):.0f} to {max(rates):.0f}"
    return spec.measured(statistics.median(rates), len(runs), f"{spread}; {detail}".rstrip("; "))


def _part(spec: RowSpec, parts: Sequence[Part], what: str) -> Row:
    wall = sorted(value for one in parts for value in one.wall) or [0]
    cpu = sorted(value for one in parts for value in one.cpu) or [0]
    tail_ms, cpu_ms = quantile(wall, 0.99) / 1e6, quantile(cpu, 0.5) / 1e6
    detail = f"{what}; p99 {tail_ms:.3f} ms; processor {cpu_ms:.3f} ms"
    return spec.measured(quantile(wall, 0.5) / 1e6, len(parts), detail)
