"""Grid: one decision per fabric and SLO, migrate, prewarm or reject (paper, section 6.5).

Three of the paper's rules compose to it. The deadline gate decides whether a cell moves states at
all: below it no number of warm targets helps. Above it a cell that cannot carry as many moves as
come at once, or that finds its targets warm too rarely, prewarms: warm engines absorb what would
be late (figure 1, section 6.3). What is left migrates on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from worldline.admissibility.condition import Condition, Transfer
from worldline.admissibility.fleet import fluid_moves_max, horizon_bytes
from worldline.cli import paper
from worldline.cli.decision import judge
from worldline.cli.fabric import Fabric
from worldline.cli.handling import Handling


class Choice(StrEnum):
    """What a deployment does in a cell."""

    MIGRATE = "migrate"
    PREWARM = "prewarm"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Demand:
    """What every cell is asked for.

    `at_once` moves share a channel within one horizon; `warm_share` is how often a move finds its
    target warm already.
    """

    state_bytes: int
    dirty_rate_bytes_per_s: float
    at_once: int
    warm_share: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One decision, why, and the numbers (their unit last)."""

    fabric: str
    horizon_ms: float
    choice: Choice
    reason: str
    explanation: str
    numbers: Mapping[str, float] = field(hash=False)


def grid(
    fabrics: Sequence[Fabric], horizons_ms: Sequence[float], demand: Demand, handling: Handling
) -> list[list[Cell]]:
    """A row of cells for each fabric, one for each horizon.

    Raises:
        InvalidInput: a value out of range.
    """
    return [
        [cell(fabric, horizon_ms, demand, handling) for horizon_ms in horizons_ms]
        for fabric in fabrics
    ]


def cell(fabric: Fabric, horizon_ms: float, demand: Demand, handling: Handling) -> Cell:
    """The decision of one cell.

    Raises:
        InvalidInput: a value out of range.
    """
    transfer = Transfer(demand.state_bytes, horizon_ms, demand.dirty_rate_bytes_per_s)
    condition = handling.condition(transfer, fabric.rate_bytes_per_s)
    verdict = judge(condition)
    numbers = condition.numbers()
    if not verdict.admitted:
        choice, reason, explanation = Choice.REJECT, verdict.label, verdict.explanation
    else:
        # Only here: below the gate not even one move fits, and N may be out of range.
        numbers["moves_max"] = _moves_max(condition)
        choice, reason, explanation = _above_gate(condition, numbers["moves_max"], demand)
    return Cell(fabric.name, horizon_ms, choice, reason, explanation, numbers)


def _moves_max(condition: Condition) -> float:
    """N <= H*B/C on this path, its set-up charged."""
    transfer, path = condition.transfer, condition.path
    move_bytes = horizon_bytes(
        transfer.state_bytes, transfer.dirty_rate_bytes_per_s, transfer.horizon_ms
    )
    return fluid_moves_max(move_bytes, path.rate_bytes_per_s, transfer.horizon_ms, path.setup_ms)


def _above_gate(condition: Condition, moves_max: float, demand: Demand) -> tuple[Choice, str, str]:
    # Condition (1) alone decides over one move; the fluid bound is about several.
    if demand.at_once > 1 and moves_max < demand.at_once:
        return (
            Choice.PREWARM,
            "FLEET_BOUND",
            f"one move fits, but only {moves_max:.2f} of {demand.at_once} at once",
        )
    cold_ms = condition.t_migrate_ms + paper.COLD_START_MS
    if demand.warm_share < paper.WARM_SHARE_MIN and cold_ms >= condition.transfer.horizon_ms:
        return (
            Choice.PREWARM,
            "TARGETS_COLD",
            f"a share of {demand.warm_share:g} of the moves finds its target warm, below the "
            f"break-even of {paper.WARM_SHARE_MIN:g}",
        )
    return Choice.MIGRATE, "FITS", f"{moves_max:.2f} moves fit at once"
