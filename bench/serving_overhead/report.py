"""Report: rows from gaps. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub

from bench.decisions.report import quantile
from bench.row import Row, RowSpec, at_most

#: Paper, section 5: "The serving layer adds 0.2 ms per quantum over the bare forward (21,878 quanta
#: dual-timed)".
ADDED_MS_MAX = 0.2

ADDED = RowSpec("overhead.added", "ms", at_most(ADDED_MS_MAX))
ADDED_P99 = RowSpec("overhead.added-p99", "ms")
ADDED_MEAN = RowSpec("overhead.added-mean", "ms")
SPAN = RowSpec("overhead.span", "ms")
BLOCK_GAP = RowSpec("overhead.block-gap", "ms")
GAP = RowSpec("overhead.gap", "ms")
GAP_P99 = RowSpec("overhead.gap-p99", "ms")
BARE_GAP = RowSpec("overhead.bare-gap", "ms")
HANDED_GAP = RowSpec("overhead.handed-gap", "ms")
CPU = RowSpec("overhead.cpu", "ms")
PASS = RowSpec("overhead.pass", "ms")
PASS_RATIO = RowSpec("overhead.pass-ratio", "x")


@dataclass(slots=True)
class Side:
    """What one side's turns gave, in nanoseconds."""

    passes: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    gaps_cpu: list[int] = field(default_factory=list)
    #: Those between two blocks, also among `gaps`.
    block_gaps: list[int] = field(default_factory=list)
    #: Turn by turn, passes and gaps together, of each quantum.
    spans: list[float] = field(default_factory=list)
    #: Of the loop's thread, turn by turn.
    loop_cpu: list[int] = field(default_factory=list)


def rows(bare: Side, handed: Side, served: Side, turns: int) -> list[Row]:
    """The table. `added` is a quantile of the served gaps less the bare side's median gap."""
    gaps, floor_ns = sorted(served.gaps), statistics.median(bare.gaps)
    quanta = len(served.passes)
    pass_ns, bare_pass_ns = statistics.median(served.passes), statistics.median(bare.passes)
    loop_ns = sum(served.loop_cpu) / quanta
    worker_ns = statistics.median(served.gaps_cpu) - statistics.median(bare.gaps_cpu)
    values: Sequence[tuple[RowSpec, float, str]] = (
        (ADDED, (quantile(gaps, 0.5) - floor_ns) / 1e6, f"median of {quanta} quanta"),
        (ADDED_P99, (quantile(gaps, 0.99) - floor_ns) / 1e6, ""),
        (
            ADDED_MEAN,
            (statistics.fmean(gaps) - statistics.fmean(bare.gaps)) / 1e6,
            "mean of all gaps less the bare mean: what is rare counts too",
        ),
        (
            SPAN,
            statistics.median(map(sub, served.spans, bare.spans)) / 1e6,
            "added to a quantum and its gap together: the median of all turns",
        ),
        (GAP, quantile(gaps, 0.5) / 1e6, "from the end of a pass to the next one's beginning"),
        (GAP_P99, quantile(gaps, 0.99) / 1e6, ""),
        (BARE_GAP, floor_ns / 1e6, "the same without a serving layer: stamps, frames' digest"),
        (
            HANDED_GAP,
            statistics.median(handed.gaps) / 1e6,
            "the same with each pass handed to the thread by the event loop, and nothing decided",
        ),
        (
            CPU,
            (loop_ns + worker_ns) / 1e6,
            f"of the processor, a quantum: loop {loop_ns / 1e6:.3f}, worker {worker_ns / 1e6:.3f}",
        ),
        (PASS, pass_ns / 1e6, "the model's own pass, served; median"),
        (
            PASS_RATIO,
            pass_ns / bare_pass_ns,
            f"to the bare one, {bare_pass_ns / 1e6:.3f} ms: what sharing the interpreter costs it",
        ),
    )
    found = [spec.measured(value, turns, detail) for spec, value, detail in values]
    return [*found, _block_gap(served.block_gaps, turns)]


def _block_gap(gaps: Sequence[int], turns: int) -> Row:
    if not gaps:
        return BLOCK_GAP.skipped("a turn has one block: ask for more quanta, or for fewer turns")
    detail = f"of {len(gaps)} gaps between two blocks, which the event loop has to decide"
    return BLOCK_GAP.measured(statistics.median(gaps) / 1e6, turns, detail)
