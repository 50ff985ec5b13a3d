"""Table: every arm of the experiments, by the name that its rows carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.serving.policies.pin_queue import PinQueue
from bench.serving.policies.policy import Policy
from bench.serving.policies.round_robin import RoundRobin
from bench.serving.policies.worldline import Worldline
from bench.serving.session import Grid, open_grid

WORLDLINE = "worldline"
PIN_QUEUE = "pin-queue"
BLIND = "blind round robin"
BLIND_LADDER = "blind, with the ladder"
NO_KNOB = "no quality knob"
#: While bulk waits, interactive blocks get their contract's floor.
GIVES = "worldline, gives to bulk"


@dataclass(frozen=True, slots=True)
class Arm:
    """Who decides, and what interactive sessions are released by. `make`: one for each device."""

    name: str
    make: Callable[[], Policy]
    grid: Callable[[float], Grid] = open_grid


ARMS = {
    arm.name: arm
    for arm in (
        Arm(WORLDLINE, Worldline),
        Arm(PIN_QUEUE, PinQueue),
        Arm(BLIND, RoundRobin),
        Arm(BLIND_LADDER, lambda: RoundRobin(ladder=True)),
        Arm(NO_KNOB, lambda: Worldline(quality_knob=False)),
        Arm(GIVES, lambda: Worldline(give_to_bulk=True)),
    )
}
