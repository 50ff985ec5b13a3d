"""Report: the tables for people, in Markdown, and the document for machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.serving.placement import Placement
from bench.serving.rungs import (
    NONE_PER_S,
    PAPER_KNOB_PER_S,
    PAPER_NO_KNOB_PER_S,
    PAPER_PAYOFFS,
    Rung,
)
from bench.serving.table4 import PAPER, order_reproduced
from bench.serving.trials import Trials

#: A figure further off than this is not reproduced.
RELATIVE_MAX = 0.15

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was simulated."""

    table4: Sequence[Trials]
    rungs: Sequence[Rung]
    placement: Sequence[tuple[Placement, Trials]]
    ablation: Sequence[Trials]


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that has to come out as in the paper."""

    name: str
    paper: str
    simulated: str
    met: bool


def bars(findings: Findings) -> list[Bar]:
    """What is held against the paper."""
    first = findings.rungs[0]
    knob, without = (each.mean("bulk_per_device_s") for each in (first.knob, first.no_knob))
    found = [
        Bar("order of Table 4", "", "", order_reproduced(findings.table4)),
        _relative("bulk blocks/s at 600 ms, with the knob", PAPER_KNOB_PER_S, knob),
        Bar(
            "bulk blocks/s at 600 ms, without",
            f"{PAPER_NO_KNOB_PER_S:g}",
            f"{without:.3f}",
            without < NONE_PER_S,
        ),
    ]
    for rung, paper in zip(findings.rungs[1:], PAPER_PAYOFFS, strict=True):
        name = f"payoff of the knob at {rung.period_s * 1e3:g} ms"
        found.append(_relative(name, paper, rung.payoff))
    return found


def _relative(name: str, paper: float, simulated: float) -> Bar:
    off = (simulated - paper) / paper
    return Bar(name, f"{paper:g}", f"{simulated:.2f} ({off:+.1%})", abs(off) <= RELATIVE_MAX)


def tables(findings: Findings) -> str:
    """All of them, one under another."""
    return "\n\n".join(
        (
            _table4(findings.table4),
            _rungs(findings.rungs),
            _placement(findings.placement),
            _ablation(findings.ablation),
            _bars(bars(findings)),
        )
    )


def document(findings: Findings, facts: dict[str, object]) -> dict[str, object]:
    """Everything, with the cell that it was simulated on and the machine that did it."""
    return {
        **facts,
        "cell": asdict(findings.table4[0].cell),
        "table4": [each.to_json() for each in findings.table4],
        "rungs": [
            {
                "payoff": rung.payoff,
                "arms": [each.to_json() for each in (rung.knob, rung.no_knob, rung.kept)],
            }
            for rung in findings.rungs
        ],
        "placement": [{**asdict(each), **played.to_json()} for each, played in findings.placement],
        "ablation": [each.to_json() for each in findings.ablation],
        "bars": [asdict(each) for each in bars(findings)],
    }


def _table4(rows: Sequence[Trials]) -> str:
    lines: list[Line] = [
        ("POLICY", "C1 MISS %", "PAPER", "BULK BLOCKS", "PAPER", "C1 SKIPS", "PAPER",
         "DEGRADED %", "RESPONSE p50", "p99, ms"),
    ]  # fmt: skip
    for row in rows:
        paper = PAPER.get(row.arm)
        known = ("", "", "")
        if paper is not None:
            known = (f"{paper.missed_percent:g}", f"{paper.bulk_blocks:g}", f"{paper.skips:g}")
        lines.append(
            (
                row.arm,
                _percent(row, "missed_share", 2),
                known[0],
                f"{row.mean('bulk_blocks'):.0f}",
                known[1],
                f"{row.mean('skipped'):.0f}",
                known[2],
                _percent(row, "degraded_share", 0),
                _ms(row, "response_p50_s"),
                _ms(row, "response_p99_s"),
            )
        )
    return markdown(lines)


def _rungs(rungs: Sequence[Rung]) -> str:
    lines: list[Line] = [
        ("PERIOD", "BULK/S, KNOB", "PAPER", "NO KNOB", "PAPER", "PAYOFF", "PAPER",
         "KNOB, NOTHING GIVEN"),
    ]  # fmt: skip
    for number, rung in enumerate(rungs):
        first = number == 0
        lines.append(
            (
                f"{rung.period_s * 1e3:g} ms",
                _bulk(rung.knob),
                f"{PAPER_KNOB_PER_S:g}" if first else "",
                _bulk(rung.no_knob),
                f"{PAPER_NO_KNOB_PER_S:g}" if first else "",
                "" if first else f"{rung.payoff:.2f}",
                "" if first else f"{PAPER_PAYOFFS[number - 1]:g}",
                _bulk(rung.kept),
            )
        )
    return markdown(lines)


def _placement(rows: Sequence[tuple[Placement, Trials]]) -> str:
    lines: list[Line] = [("DEVICE", "QUANTUM", "PERIOD", "FLOOR", "C1 MISS %", "BULK/S", "PAPER")]
    for each, row in rows:
        lines.append(
            (
                each.name,
                f"{each.quantum_s * 1e3:g} ms",
                f"{each.period_s * 1e3:g} ms",
                f"{each.floor_steps}",
                _percent(row, "missed_share", 2),
                _bulk(row),
                each.paper,
            )
        )
    return markdown(lines, left={0, 6})


def _ablation(rows: Sequence[Trials]) -> str:
    lines: list[Line] = [
        ("RULES", "C1 MISS %", "MOST IN A ROW", "C1 SKIPS", "BULK/S", "RESPONSE p99, ms")
    ]
    for row in rows:
        lines.append(
            (
                row.arm,
                _percent(row, "missed_share", 2),
                f"{row.worst('missed_in_a_row'):.0f}",
                f"{row.mean('skipped'):.0f}",
                _bulk(row),
                _ms(row, "response_p99_s"),
            )
        )
    return markdown(lines)


def _bars(rows: Sequence[Bar]) -> str:
    lines: list[Line] = [("AS IN THE PAPER", "PAPER", "SIMULATED", "")]
    lines += [
        (bar.name, bar.paper, bar.simulated, "yes" if bar.met else "NOT REPRODUCED") for bar in rows
    ]
    return markdown(lines)


def _percent(row: Trials, quantity: str, digits: int) -> str:
    return f"{100 * row.mean(quantity):.{digits}f}"


def _bulk(row: Trials) -> str:
    return f"{row.mean('bulk_per_device_s'):.3f}"


def _ms(row: Trials, quantity: str) -> str:
    return f"{row.mean(quantity) * 1e3:.0f}"


def markdown(lines: Sequence[Line], left: frozenset[int] | set[int] = frozenset({0})) -> str:
    """A table whose source can be read too; `left` names the columns that are not numbers."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = tuple(
        "-" * width if column in left else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    )
    return "\n".join(
        "| "
        + " | ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in (lines[0], rule, *lines[1:])
    )
