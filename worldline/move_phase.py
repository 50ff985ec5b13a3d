"""Move phase: where a move stands; one word for placement, its directory and its clients."""

from __future__ import annotations

from enum import IntEnum


class MovePhase(IntEnum):
    """Phases of a move, in order; numbers as in move.proto."""

    REQUESTED = 1
    ADMITTED = 2
    RESERVED = 3
    FROZEN = 4
    STAGED = 5
    VERIFIED = 6
    ATTACHED = 7
    COMMITTED = 8
    DONE = 9
    ROLLING_BACK = 10
    ABORTED = 11
    REJECTED = 12

    @property
    def terminal(self) -> bool:
        """Nothing of the move is left to do, and nothing of it is held anywhere."""
        return self in TERMINAL

    @property
    def before_commit(self) -> bool:
        """The source is authoritative and the move can still be given up."""
        return self in BEFORE_COMMIT


BEFORE_COMMIT = frozenset(
    {
        MovePhase.REQUESTED,
        MovePhase.ADMITTED,
        MovePhase.RESERVED,
        MovePhase.FROZEN,
        MovePhase.STAGED,
        MovePhase.VERIFIED,
        MovePhase.ATTACHED,
    }
)
TERMINAL = frozenset({MovePhase.DONE, MovePhase.ABORTED, MovePhase.REJECTED})
