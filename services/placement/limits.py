"""Limits of a move: how long each phase may last."""

from __future__ import annotations

from dataclasses import dataclass

from services.placement.phases import MovePhase
from worldline.fields import positive


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a move may stay in a phase before it is rolled back.

    The steps' own RPC deadlines are shorter; these catch what they cannot.

    Raises:
        InvalidInput: one is not a finite number above 0.
    """

    #: Includes measuring an unmeasured path, and quanta at a target without a row.
    requested_s: float = 150.0
    #: Includes building the model's weights at the target; the wait for the wire comes on top.
    admitted_s: float = 120.0
    #: Freezing waits for a block boundary.
    reserved_s: float = 30.0
    #: The ticket's lease is the tighter bound.
    frozen_s: float = 120.0
    staged_s: float = 60.0
    verified_s: float = 60.0
    attached_s: float = 30.0
    #: A move that rests between two verbs of its client.
    rest_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            positive(getattr(self, name), name)

    def of(self, phase: MovePhase, *, resting: bool, wait_s: float = 0.0) -> float | None:
        """The limit, or None for phases whose obligations bound themselves.

        `wait_s` is how long the move's ticket lets it wait for its wire.
        """
        if resting:
            return self.rest_s
        return {
            MovePhase.REQUESTED: self.requested_s,
            MovePhase.ADMITTED: self.admitted_s + wait_s,
            MovePhase.RESERVED: self.reserved_s,
            MovePhase.FROZEN: self.frozen_s,
            MovePhase.STAGED: self.staged_s,
            MovePhase.VERIFIED: self.verified_s,
            MovePhase.ATTACHED: self.attached_s,
        }.get(phase)
