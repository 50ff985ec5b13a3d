"""Table 4: an interactive session and a finite bulk job on each of eight devices, by policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.serving.cell import Cell
from bench.serving.policies.table import ARMS, BLIND, BLIND_LADDER, NO_KNOB, PIN_QUEUE, WORLDLINE
from bench.serving.trials import Say, Trials, trials


@dataclass(frozen=True, slots=True)
class Paper:
    """A row of the paper's Table 4, figures per cell."""

    missed_percent: float
    bulk_blocks: float
    skips: float


PAPER: Mapping[str, Paper] = {
    WORLDLINE: Paper(0.44, 960, 213),
    PIN_QUEUE: Paper(0.36, 0, 212),
    BLIND: Paper(6.27, 960, 898),
}
#: "matches a dedicated GPU within per-device noise": misses of these two, in percentage points.
_NOISE_PERCENT = 0.25


def table4(base: Cell, seeds: Sequence[int], say: Say) -> list[Trials]:
    """The paper's three arms, and each factor by itself: blind with a ladder, ours without."""
    return [trials(base, ARMS[name], seeds, say) for name in (*PAPER, BLIND_LADDER, NO_KNOB)]


def order_reproduced(rows: Sequence[Trials]) -> bool:
    """Whether the arms come in the paper's order in all three columns.

    Misses: Worldline and pin-queue alike, blind far behind. Bulk: all of the job in two arms, none
    in pin-queue. Skips: the same two alike, blind far behind.
    """
    by_arm = {row.arm: row for row in rows}
    ours, pinned, blind = (by_arm[name] for name in (WORLDLINE, PIN_QUEUE, BLIND))
    missed = [100 * row.mean("missed_share") for row in (ours, pinned, blind)]
    bulk = [row.mean("bulk_blocks") for row in (ours, pinned, blind)]
    skips = [row.mean("skipped") for row in (ours, pinned, blind)]
    return (
        abs(missed[0] - missed[1]) <= _NOISE_PERCENT
        and missed[2] > 5 * max(missed[0], missed[1])
        and bulk[0] == bulk[2] > bulk[1] == 0
        and skips[2] > 2 * max(skips[0], skips[1])
    )
