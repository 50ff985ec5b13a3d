"""Report: tables for people, in Markdown, what has to come out, and the document. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.serving.policies.table import BLIND, NO_KNOB, PIN_QUEUE, WORLDLINE
from bench.serving.real.outcome import Trials
from bench.serving.real.rung import Rung
from bench.serving.report import Line, markdown

Found = Sequence[tuple[Rung, Sequence[Trials]]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to come out, whatever the device."""

    name: str
    seen: str
    met: bool


def checks(found: Found) -> list[Check]:
    """What is held against the tight rung: the order of the paper's Table 4, and the knob's worth.

    Without any width of its own: an arm is nearer to one figure than to another, or above it.
    """
    rows = {row.arm: row for row in found[0][1]}
    missed = {arm: 100 * row.mean("missed_share") for arm, row in rows.items()}
    bulk = {arm: row.mean("bulk_blocks") for arm, row in rows.items()}
    ours, pinned, blind = (missed[arm] for arm in (WORLDLINE, PIN_QUEUE, BLIND))
    return [
        Check(
            "misses of worldline are nearer to pin-queue's than to the blind arm's",
            f"{ours:.1f}, {pinned:.1f}, {blind:.1f} %",
            abs(ours - pinned) < abs(blind - ours),
        ),
        Check("the blind arm misses most", f"{blind:.1f} %", blind > max(ours, pinned)),
        Check(
            "pin-queue serves no bulk, worldline does",
            f"{bulk[PIN_QUEUE]:.1f}, {bulk[WORLDLINE]:.1f} blocks",
            bulk[PIN_QUEUE] == 0 < bulk[WORLDLINE],
        ),
        Check(
            "the quality knob gives bulk more than there is without",
            f"{bulk[WORLDLINE]:.1f}, {bulk[NO_KNOB]:.1f} blocks",
            bulk[WORLDLINE] > bulk[NO_KNOB],
        ),
    ]


def tables(found: Found, bulk_blocks: int) -> str:
    """The periods and what they leave, a table for each, and what had to come out."""
    parts = [_periods([rung for rung, _ in found])]
    parts += [_rung(rung, rows, bulk_blocks) for rung, rows in found]
    return "\n\n".join((*parts, _checks(checks(found))))


def document(found: Found, facts: dict[str, object]) -> dict[str, object]:
    """Everything, with the machine that did it."""
    return {
        **facts,
        "rungs": [
            {**rung.to_json(), "arms": [row.to_json() for row in rows]} for rung, rows in found
        ],
        "checks": [asdict(check) for check in checks(found)],
    }


def _periods(rungs: Sequence[Rung]) -> str:
    lines: list[Line] = [("RUNG", "PERIOD, ms", "QUANTUM p95", "FULL LEAVES", "FLOOR LEAVES, ms")]
    lines += [
        (rung.name, _ms(rung.period_s), _ms(rung.quantum_s), _ms(rung.left_full_s),
         _ms(rung.left_floor_s))
        for rung in rungs
    ]  # fmt: skip
    return markdown(lines)


def _rung(rung: Rung, rows: Sequence[Trials], bulk_blocks: int) -> str:
    lines: list[Line] = [
        (rung.name.upper(), "C1 MISS %", "WORST", "C1 BLOCKS", "C1 SKIPS", "DEGRADED %",
         f"BULK BLOCKS OF {bulk_blocks}", "QUANTUM p50", "p95, ms"),
    ]  # fmt: skip
    lines += [
        (
            row.arm,
            f"{100 * row.mean('missed_share'):.1f}",
            f"{100 * row.worst('missed_share'):.1f}",
            f"{row.mean('blocks'):.1f}",
            f"{row.mean('skipped'):.1f}",
            f"{100 * row.mean('degraded_share'):.0f}",
            f"{row.mean('bulk_blocks'):.1f}",
            f"{row.quantum_ms(0.5):.1f}",
            f"{row.quantum_ms(0.95):.1f}",
        )
        for row in rows
    ]
    return markdown(lines)


def _checks(rows: Sequence[Check]) -> str:
    lines: list[Line] = [("ON THE TIGHT RUNG", "SEEN", "")]
    lines += [(row.name, row.seen, "yes" if row.met else "NO") for row in rows]
    return markdown(lines, left={0, 1})


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
