"""Arms: who chooses the next claim, and whether a block may have fewer steps than all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.serving.policies.table import BLIND, NO_KNOB, PIN_QUEUE, WORLDLINE
from bench.serving.real.choosers import PinQueue, RoundRobin
from services.engine.schedule import Chooser, pick

INTERACTIVE = "interactive"
BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the rows. `chooser` makes a new one for each trial."""

    name: str
    chooser: Callable[[], Chooser]
    #: Whether the interactive contract has a floor below full quality.
    knob: bool


ARMS = (
    Arm(WORLDLINE, lambda: pick, knob=True),
    Arm(PIN_QUEUE, lambda: PinQueue(INTERACTIVE), knob=True),
    Arm(BLIND, RoundRobin, knob=False),
    Arm(NO_KNOB, lambda: pick, knob=False),
)


def in_turn(trial: int) -> tuple[Arm, ...]:
    """All arms, each trial beginning with another: what drifts meets all of them alike."""
    start = trial % len(ARMS)
    return ARMS[start:] + ARMS[:start]
