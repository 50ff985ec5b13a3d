"""Quality: how many denoising steps a block gets, and why not all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.engine.expected import Expected
from services.engine.schedule import (
    Claim,
    Guard,
    Ladder,
    QualityHistory,
    Why,
    choose_steps,
    slack_s,
)
from services.engine.world import WorldModel
from worldline.contract import Contract


@dataclass(frozen=True)
class Quality:
    """Steps of one block, and of a block that nothing is left out of."""

    steps: int
    steps_full: int
    #: Why they are fewer, with the numbers; empty at full quality.
    because: str = ""

    @property
    def degraded(self) -> bool:
        """Whether steps are left out."""
        return self.steps < self.steps_full


def full_quality(model: WorldModel) -> Quality:
    """Every step."""
    return Quality(model.denoising_steps, model.denoising_steps)


def replayed_quality(model: WorldModel, steps: int) -> Quality:
    """As many steps as the block had that is replayed."""
    full = model.denoising_steps
    return Quality(steps, full, "REPLAYED: so had the replayed block" if steps < full else "")


def ladder_of(model: WorldModel, contract: Contract) -> Ladder | None:
    """The rungs that the contract leaves; None where there is only the top one.

    Also None for a model whose blocks have fewer quanta than steps: leaving a step out saves
    nothing there.
    """
    floor, full = contract.quality_floor_steps, model.denoising_steps
    context_quanta = model.quanta_per_block - full
    if contract.period_ms <= 0 or not 0 < floor < full or context_quanta < 0:
        return None
    return Ladder(full, floor, context_quanta)


def choose_quality(
    model: WorldModel,
    ladder: Ladder | None,
    claim: Claim,
    claims: Iterable[Claim],
    now: float,
    *,
    expected: Expected,
    guard: Guard,
    history: QualityHistory,
    gives: bool = False,
) -> Quality:
    """The quality of the block that `claim` is about to begin, among all `claims` here.

    Full, unless the contract has a floor and the block a deadline that all its steps would miss,
    or would make another hard block miss. What then decides is the slack that measured rows leave.
    `gives`: bulk waits, and the operator lets it have the steps above the floor.
    """
    full = full_quality(model)
    if ladder is None or math.isinf(claim.deadline_at):
        return full
    left_s = slack_s(claim, claims, now, guard)
    even_s = _even(left_s, expected, guard)
    chosen = choose_steps(
        ladder,
        even_s,
        expected.step_s,
        guard=guard,
        history=history,
        give_to_bulk=gives and claim.hard,
    )
    if not chosen.degraded:
        return full
    if chosen.why is Why.DEGRADED_FOR_BULK:
        return Quality(chosen.steps, full.steps, f"{chosen.why}: bulk waits, and the floor is kept")
    if chosen.why is Why.FLOOR_TOO_LATE:
        what, left_out = "the floor takes", full.steps - chosen.steps
    else:
        what, left_out = f"{full.steps} steps take", 0
    wanted_ms = guard.bound_s(expected.block_s(model.quanta_per_block - left_out)) * 1e3
    because = f"{chosen.why}: {what} up to {wanted_ms:.1f} ms, {left_s * 1e3:.1f} ms are left"
    return Quality(chosen.steps, full.steps, because)


def kept_steps(ladder: Ladder, period_s: float, expected: Expected, guard: Guard) -> int:
    """Steps that a block would get alone on the device: what others may not cost it."""
    if expected.step_s <= 0:
        return ladder.full_steps
    even_s = _even(period_s, expected, guard)
    return ladder.highest_within(even_s, expected.step_s, guard) or ladder.floor_steps


def _even(slack_s: float, expected: Expected, guard: Guard) -> float:
    """What a slack leaves once the last quantum is no longer than the others: rungs are equal."""
    return slack_s - expected.extra_s * (1 + guard.overrun)
