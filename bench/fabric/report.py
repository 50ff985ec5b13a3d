"""Report: the table for people, the document for machines, and what to doubt in both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from bench.columns import columns
from bench.fabric.cell import Cell
from bench.fabric.incast import PAPER, Incast
from bench.fabric.policies.table import OURS
from bench.fabric.reference import RELATIVE_MAX, Comparison
from bench.fabric.tally import Row

_HEADINGS = (
    "LOAD", "POLICY", "ADMITTED", "ON TIME", "MISSED", "REJECTED", "LATER", "LATER/ALL",
    "Gb/s*", "OF ORACLE", "OF BOUND",
)  # fmt: skip
_PAPER_HEADINGS = (
    "PAPER, SECTION 6.3", "LOAD", "FIGURE", "PAPER", "SIMULATED", "OFF", "5-95 %", "",
)  # fmt: skip
_INCAST_HEADINGS = (
    "INCAST, TABLE 3",
    "Gb/s A MOVE",
    "PAPER",
    "Gb/s INTO",
    "PAPER",
    "STALLED",
    "PAPER",
)
_FOOT = (
    "Means over {seeds} seeds of 72 offers. ON TIME: within its horizon from when it asked for "
    "the wire.\nREJECTED: when first asked; LATER: after a wait. *: median goodput of admitted "
    "moves on the wire, in Gb/s.\nThe oracle knows every offer, lag and rate; the bound is what no "
    "plan without incast could exceed."
)


def table(rows: Sequence[Row]) -> str:
    """All rows in columns."""
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    seeds = rows[0].seeds if rows else 0
    return f"{columns(lines, left={1})}\n\n{_FOOT.format(seeds=seeds)}\n{misses(rows)}"


def misses(rows: Sequence[Row]) -> str:
    """What the real core admitted and the fabric did not carry in time."""
    missed = [row for row in rows if row.policy == OURS and row.missed]
    if not missed:
        return "The real core admitted no move that missed."
    lines = [
        f"The real core admitted {row.missed:g} moves a run that missed at {row.load:g}x: "
        f"seeds {', '.join(map(str, row.missed_in_seeds))}"
        for row in missed
    ]
    return "\n".join(lines)


def paper_table(comparisons: Sequence[Comparison]) -> str:
    """The paper's figures beside the simulated ones."""
    lines = [_PAPER_HEADINGS, *(_paper_cells(comparison) for comparison in comparisons)]
    return columns(lines, left={0, 2, 7})


def incast_table(incasts: Sequence[Incast]) -> str:
    """What the cell is calibrated by: the collapse that it was given no figure of."""
    lines = [_INCAST_HEADINGS]
    for each, (_, move, receiver, stalled) in zip(incasts, PAPER, strict=True):
        lines.append(
            (
                f"{each.fan_in} into one",
                f"{each.move_gbit_per_s:.1f}",
                f"{move:.1f}",
                f"{each.receiver_gbit_per_s:.1f}",
                f"{receiver:.1f}",
                f"{each.stalled:.0%}",
                "" if stalled is None else f"{stalled:.0%}",
            )
        )
    return columns(lines, left={0})


def document(
    rows: Sequence[Row],
    comparisons: Sequence[Comparison],
    incasts: Sequence[Incast],
    cell: Cell,
    *,
    pinned: bool,
) -> dict[str, object]:
    """Everything, with the cell that it was simulated on."""
    return {
        "cell": asdict(cell),
        "pinned": pinned,
        "rows": [row.to_json() for row in rows],
        "incast": [asdict(each) for each in incasts],
        "paper": [comparison.to_json() for comparison in comparisons],
    }


def _cells(row: Row) -> tuple[str, ...]:
    counts = (row.admitted, row.on_time, row.missed, row.rejected, row.rejected_later)
    return (
        f"{row.load:g}x",
        row.policy,
        *(f"{count:.1f}" for count in counts),
        f"{row.later_share:.1%}" if row.rejected + row.rejected_later else "",
        f"{row.goodput_gbit_per_s:.1f}",
        _percent(row.oracle_share),
        _percent(row.bound_share),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _paper_cells(comparison: Comparison) -> tuple[str, ...]:
    figure, relative = comparison.figure, comparison.relative
    return (
        figure.policy,
        f"{figure.load:g}x",
        figure.quantity,
        f"{figure.paper:g}",
        f"{comparison.simulated:.1f}",
        "" if relative is None else f"{relative:+.0%}",
        f"{comparison.least:.3g} - {comparison.most:.3g}",
        _remark(comparison),
    )


def _remark(comparison: Comparison) -> str:
    remarks = []
    if not comparison.reproduced:
        remarks.append(f"NOT REPRODUCED within {RELATIVE_MAX:.0%}")
        remarks.append("in range" if comparison.in_range else "out of range")
    if comparison.figure.fitted:
        remarks.append("fitted, not predicted")
    return ", ".join(remarks)
