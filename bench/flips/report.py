"""Report: a table of strata for people, every flip for machines. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, get_args

from bench.columns import columns
from bench.flips.battery import Outcome
from bench.flips.strata import MEANINGS, Part

_HEADINGS = (
    "PART", "BIT", "FLIPS", "VISIBLE AT THE NEXT BLOCK", "EVER", "ERASED AFTER A BLOCK", "EVER",
    "SAMPLES CHANGED",
)  # fmt: skip
_FOOT = (
    "Blocks played after each flip: {blocks}. VISIBLE: any sample of the frames differs from the "
    "twin's.\nERASED: every byte and scalar of the state is the twin's. SAMPLES CHANGED: in the "
    "next block's frames, least / median."
)


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a stratum."""
    lines: list[tuple[str, ...]] = [_HEADINGS]
    for part in get_args(Part):
        for meaning in MEANINGS:
            stratum = [
                one for one in outcomes if (one.flip.part, one.flip.meaning) == (part, meaning)
            ]
            if stratum:
                lines.append(_cells(part, meaning, stratum))
    foot = _FOOT.format(blocks=len(outcomes[0].state_equal))
    return f"{columns(lines, left={0, 1})}\n\n{foot}\n{verdict(outcomes)}"


def verdict(outcomes: Iterable[Outcome]) -> str:
    """Whether all came as the window's geometry says, and which flips did not."""
    judged = [one for one in outcomes if one.as_expected is not None]
    others = [one for one in judged if not one.as_expected]
    text = f"{len(judged) - len(others)} of {len(judged)} flips came as the window's geometry says."
    return "\n".join([text, *(f"not so ({one.flip.part}): {one.flip}" for one in others)])


def document(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every flip and what became of it."""
    return [
        asdict(one)
        | {
            "visible_at": one.visible_at,
            "erased_after": one.erased_after,
            "as_expected": one.as_expected,
        }
        for one in outcomes
    ]


def _cells(part: str, meaning: str, stratum: Sequence[Outcome]) -> tuple[str, ...]:
    count = len(stratum)
    changed = [one.samples_changed[0] for one in stratum]
    return (
        part,
        meaning,
        str(count),
        f"{sum(one.visible_at == 1 for one in stratum)}/{count}",
        f"{sum(one.visible_at is not None for one in stratum)}/{count}",
        f"{sum(one.erased_after == 1 for one in stratum)}/{count}",
        f"{sum(one.erased_after is not None for one in stratum)}/{count}",
        f"{min(changed)} / {statistics.median(changed):g}",
    )
