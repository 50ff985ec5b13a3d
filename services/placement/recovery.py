"""Recovery: what a restarted placement does with each move it finds open. Pure.

Before COMMITTED the source is authoritative: roll back. From COMMITTED on the target is: go on.
Every obligation that may be open is issued again; all of them are idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.placement import events as ev
from services.placement.move import Move
from services.placement.phases import MovePhase, Step
from services.placement.values import Failure

RESTARTED = Failure(
    kind="Unavailable",
    reason="PLACEMENT_RESTARTED",
    message="placement restarted before the move was committed; the source stays authoritative",
)

#: Every step of which something may be left. How far the move had come is not in its phase: one
#: that rolls back does not say, and a power cut takes the latest phases from the file with it.
_POSSIBLE = frozenset({Step.ASK_ADMISSION, Step.RESERVE, Step.FREEZE, Step.ATTACH})


@dataclass(frozen=True, slots=True)
class Resumption:
    """The move to go on with: first `actions`, then `events`."""

    move: Move
    actions: tuple[ev.Action, ...]
    events: tuple[ev.Event, ...]


def resume(move: Move) -> Resumption:
    """How to go on with an open move found in the directory.

    `move` has the durable facts; what was issued by the process before is not among them.
    """
    if move.phase is MovePhase.COMMITTED:
        issue = (Step.ACTIVATE, 1)
        resumed = replace(
            move, issued=frozenset({issue}), pending=frozenset({issue}), deadline_s=None
        )
        return Resumption(resumed, (ev.Run(*issue),), ())
    failure = move.failure
    if failure is None and (move.verdict is None or move.verdict.admitted):
        failure = RESTARTED
    issued = frozenset((step, 1) for step in _POSSIBLE)
    phase = MovePhase.ATTACHED if move.phase is MovePhase.ROLLING_BACK else move.phase
    resumed = replace(move, phase=phase, issued=issued, pending=frozenset(), failure=failure)
    return Resumption(resumed, (), (ev.RollbackAsked(failure or RESTARTED),))
