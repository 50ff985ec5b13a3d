"""Phases and steps of a move: the words that the machine, the directory and the wire share."""

from __future__ import annotations

from enum import Enum, IntEnum

from worldline.move_phase import BEFORE_COMMIT, MovePhase

__all__ = ["BEFORE_COMMIT", "OBLIGATIONS", "Goal", "MovePhase", "Outcome", "Step"]


class Goal(IntEnum):
    """How far the client has asked a move to go; `MoveSession` asks for COMMIT at once."""

    ADMIT = 1
    STAGE = 2
    VERIFY = 3
    COMMIT = 4


class Step(Enum):
    """One piece of work outside the machine; the value names its span and log lines."""

    ASK_ADMISSION = "admit"
    PROBE = "probe"
    RESERVE = "reserve"
    WARM = "warm"
    ARM = "arm"
    FREEZE = "freeze"
    PUSH = "push"
    VERIFY = "verify"
    ATTACH = "attach"
    RECORD_COMMIT = "commit"
    ACTIVATE = "thaw"
    DETACH_SOURCE = "detach_source"
    RELEASE_SOURCE = "release_source"
    THAW_SOURCE = "thaw_source"
    DETACH_TARGET = "detach_target"
    RELEASE_TARGET = "release_target"
    FINISH_TICKET = "finish_ticket"


#: Steps that must come to an end whatever happens: a move is not over before they are settled.
OBLIGATIONS = frozenset(
    {
        Step.ACTIVATE,
        Step.DETACH_SOURCE,
        Step.RELEASE_SOURCE,
        Step.THAW_SOURCE,
        Step.DETACH_TARGET,
        Step.RELEASE_TARGET,
        Step.FINISH_TICKET,
    }
)


class Outcome(Enum):
    """How an obligation came to its end."""

    #: The peer acknowledged.
    DONE = "done"
    #: The peer's process, and with it the thing itself, is gone.
    GONE = "gone"
    #: The peer lives and refuses, or did not answer for longer than we wait.
    REFUSED = "refused"
