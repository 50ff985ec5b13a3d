"""Claim: one session's claim on the next quantum of the device."""

from __future__ import annotations

import math
from typing import NamedTuple

from worldline.contract import ServiceClass


class Demand(NamedTuple):
    """Seconds of the device that are due at a deadline, and at every one a period later."""

    due_at: float
    left_s: float
    period_s: float = 0.0
    block_s: float = 0.0


class Claim(NamedTuple):
    """What the schedule knows of a session that has work, or soon will.

    One is made for every session between any two quanta, so it is the cheapest of values. All times
    are seconds on one monotonic clock. Expected times come from measured rows, 0 where nothing was
    measured yet: such a quantum is not held back, or it would never be measured.
    """

    session_id: str
    service_class: ServiceClass
    #: When the block may start: a point of the session's grid, or when it was asked for.
    release_at: float
    #: When the block should be done; infinite for C3 and while a grid is closed.
    deadline_at: float
    #: When the block was asked for. Ties go by it, then by `session_id`.
    arrived_at: float
    #: The block has begun: the state is between boundaries.
    mid_block: bool = False
    #: Expected seconds of the next quantum.
    quantum_s: float = 0.0
    #: Expected seconds of all quanta that the block still needs, the next one among them.
    left_s: float = 0.0
    #: From one of its deadlines to the next, and expected seconds of each block after this one;
    #: a period of 0 where nothing is known of what comes after.
    period_s: float = 0.0
    block_s: float = 0.0
    #: The block that the claim is for.
    block_index: int = 0
    #: The cohort that a C2b session keeps step with; empty for none.
    wave_id: str = ""
    #: A freeze or a close waits for the block's end and wants it by then; infinite where none does.
    boundary_by: float = math.inf
    #: No action has come yet: the claim reserves its time and is never picked.
    prospective: bool = False

    @property
    def hard(self) -> bool:
        """Whether its deadline must be kept: C1, and whoever a boundary is waited for."""
        return self.service_class is ServiceClass.C1_INTERACTIVE or self.pressed

    @property
    def pressed(self) -> bool:
        """Somebody waits for the end of the block in flight."""
        return self.mid_block and self.boundary_by < math.inf

    @property
    def due_at(self) -> float:
        """The deadline that it is ordered by."""
        return min(self.deadline_at, self.boundary_by) if self.mid_block else self.deadline_at

    @property
    def demand(self) -> Demand:
        """What a hard claim asks of the device."""
        return Demand(self.due_at, self.left_s, self.period_s, self.block_s)

    @property
    def rank(self) -> tuple[float, float, str]:
        """Earliest deadline first (Liu and Layland 1973), then arrival, then id."""
        return self.due_at, self.arrived_at, self.session_id
