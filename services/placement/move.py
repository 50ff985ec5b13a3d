"""Move: one attempt to change a session's owner, as a state machine without I/O.

`step(move, event, now)` gives the next move, the actions to take and why. The caller has the record
of the move, of its commit and of its end durable BEFORE it takes what follows from them. What lies
between is written behind the actions: recovery undoes every phase before the commit alike.

Invariants:
- THAW_SOURCE never runs after COMMITTED, ACTIVATE never before it.
- What may have taken effect at a peer is undone: an obligation arises when a step is *issued*,
  not when it is acknowledged.
- DONE has released the source's slot, ABORTED and REJECTED the target's where one was asked for;
  each exactly once.
- Every event in every phase has an entry in the table. A completion that is not awaited (late,
  repeated) changes nothing; a completion of a step that was never issued is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from services.placement import events as ev
from services.placement.limits import Limits
from services.placement.move_state import Draft, Move, Transition
from services.placement.phases import BEFORE_COMMIT, Goal, MovePhase, Outcome, Step
from services.placement.values import Failure
from worldline.errors import InvariantBroken
from worldline.verdict import RejectReason

__all__ = ["Move", "Transition", "expired", "step"]

#: Paths measured for one move, each once: admission must know it then, a second time would be a
#: loop.
PROBES_MAX = 3


def step(move: Move, event: ev.Event, now: float, limits: Limits) -> Transition:
    """Take one event.

    Raises:
        InvariantBroken: no such pair of phase and event, or the completion of a step that was
            never issued; with the move's story.
    """
    handler = _TABLE.get((move.phase, type(event)))
    late = _lateness(move, event)
    if late is not None:
        return Transition(move, (), late)
    if handler is None:
        raise InvariantBroken(
            f"move {move.move_id} has no transition for {type(event).__name__} in "
            f"{move.phase.name}; story: {' | '.join(move.story)}"
        )
    draft = Draft(_without(move, event))
    reason = handler(draft, event)
    return draft.finish(reason, move, event, now, limits)


def expired(move: Move, now: float) -> bool:
    """Whether the phase's deadline is behind `now` and the move may still be given up."""
    if move.deadline_s is None or move.commit_undecided:
        return False
    return move.phase in BEFORE_COMMIT and now >= move.deadline_s


def _lateness(move: Move, event: ev.Event) -> str | None:
    """Why a completion changes nothing; None for one that is awaited and for other events."""
    step_of = getattr(event, "step", None)
    if step_of is None:
        return None
    issue = (step_of, getattr(event, "attempt", 0))
    if issue in move.pending:
        return None
    if issue in move.issued:
        return f"{type(event).__name__} is late or repeated: dropped"
    raise InvariantBroken(
        f"move {move.move_id} in {move.phase.name} got {type(event).__name__} for "
        f"{step_of.name} attempt {issue[1]}, which was never issued; "
        f"story: {' | '.join(move.story)}"
    )


def _without(move: Move, event: ev.Event) -> Move:
    step_of = getattr(event, "step", None)
    if step_of is None:
        return move
    return replace(move, pending=move.pending - {(step_of, getattr(event, "attempt", 0))})


# --- before the commit ---------------------------------------------------------------------


def _begin(draft: Draft, event: ev.Event) -> str:
    if draft.move.issued:
        return "already begun"
    draft.run(Step.ASK_ADMISSION)
    return "ask admission"


def _admitted(draft: Draft, event: ev.Admitted) -> str:
    draft.set(
        ticket=event.ticket,
        verdict=event.verdict,
        target=event.target,
        tier_dropped=event.tier_dropped,
        target_warm=event.warm,
    )
    draft.enter(MovePhase.ADMITTED)
    if draft.move.goal is Goal.ADMIT:
        return "admitted; waits for its client"
    return f"admitted; {_prepare(draft)}"


def _prepare(draft: Draft) -> str:
    """Make both ends ready while the world plays.

    The push is armed as soon as the target is warm: that asks for the wire, which nobody else may
    use meanwhile, and from then on the horizon counts. It does not wait for the reservation, which
    bears its ticket's id: what takes longer goes first.
    """
    if draft.move.target_warm:
        draft.run(Step.ARM, Step.RESERVE)
    else:
        draft.run(Step.RESERVE, Step.WARM)
    return "prepare both ends"


def _refused(draft: Draft, event: ev.Refused) -> str:
    if event.target is not None:
        draft.set(target=event.target)
    if _may_measure(draft.move, event):
        node_id = draft.move.target.node_id
        draft.set(probed=(*draft.move.probed, node_id))
        draft.run(Step.PROBE)
        return f"the path to {node_id} is unmeasured: measure it, then ask again"
    draft.set(verdict=event.verdict)
    if event.step is Step.ASK_ADMISSION or event.step is Step.PROBE:
        draft.enter(MovePhase.REJECTED)
        return f"rejected: {event.verdict.label}"
    _undo(draft)
    if event.step is Step.ARM:
        return f"withdrawn before the freeze: {event.verdict.label}"
    return f"rejected by the target: {event.verdict.label}"


def _may_measure(move: Move, event: ev.Refused) -> bool:
    if event.step is not Step.ASK_ADMISSION:
        return False
    if event.verdict.reason is not RejectReason.PATH_UNMEASURED:
        return False
    return len(move.probed) < PROBES_MAX and move.target.node_id not in move.probed


def _probed(draft: Draft, event: ev.Probed) -> str:
    draft.run(Step.ASK_ADMISSION)
    return "the path is measured: ask again"


def _asked_stage(draft: Draft, event: ev.Asked) -> str:
    if not draft.move.resting or event.goal < Goal.STAGE:
        return "not now"
    draft.set(goal=event.goal)
    return _prepare(draft)


def _reserved(draft: Draft, event: ev.Reserved) -> str:
    draft.set(reservation_id=event.reservation_id, target_slot=event.slot)
    return _freeze_when_ready(draft, "reserved")


def _warmed(draft: Draft, event: ev.Warmed) -> str:
    draft.run(Step.ARM)
    return "warmed; ask for the wire"


def _armed(draft: Draft, event: ev.Armed) -> str:
    return _freeze_when_ready(draft, "armed")


def _freeze_when_ready(draft: Draft, what: str) -> str:
    if draft.move.pending:
        return f"{what}; {_under_way(draft)}"
    draft.enter(MovePhase.RESERVED)
    draft.run(Step.FREEZE)
    return f"{what}; freeze the source"


def _frozen(draft: Draft, event: ev.Frozen) -> str:
    draft.set(source_slot=event.slot, block_index=event.block_index)
    draft.enter(MovePhase.FROZEN)
    draft.run(Step.PUSH)
    return f"frozen at block {event.block_index}; push"


def _pushed(draft: Draft, event: ev.Pushed) -> str:
    draft.set(
        source_digest=event.source_digest,
        target_digest=event.target_digest,
        figures=event.figures,
    )
    draft.enter(MovePhase.STAGED)
    if draft.move.goal < Goal.VERIFY:
        return "staged; waits for its client"
    return f"staged; {_verify(draft)}"


def _asked_verify(draft: Draft, event: ev.Asked) -> str:
    if not draft.move.resting or event.goal < Goal.VERIFY:
        return "not now"
    if draft.move.unequal is not None:
        if event.goal is Goal.COMMIT:
            return _abandon(draft, draft.move.unequal)
        return "already found to differ"
    draft.set(goal=event.goal)
    return _verify(draft)


def _verify(draft: Draft) -> str:
    """Also before a commit from VERIFIED: commit re-verifies (paper, Table 1)."""
    draft.run(Step.VERIFY)
    if draft.move.goal < Goal.COMMIT:
        return "verify at rest"
    # An attached world generates nothing: it need not wait for the verdict, the commit does. Not
    # before the push has ended: that the engine answers now is what the commit relies on.
    draft.run(Step.ATTACH)
    return "verify at rest and attach"


def _verified_equal(draft: Draft, event: ev.VerifiedEqual) -> str:
    draft.set(target_digest=event.target_digest)
    draft.enter(MovePhase.VERIFIED)
    if draft.move.goal < Goal.COMMIT:
        return "verified; waits for its client"
    return _commit_when_ready(draft, "verified")


def _verified_unequal(draft: Draft, event: ev.VerifiedUnequal) -> str:
    draft.set(unequal=event.failure)
    if draft.move.goal is Goal.COMMIT:
        return _abandon(draft, event.failure)
    draft.enter(MovePhase.STAGED)
    return "the bytes differ; a commit will refuse"


def _attached(draft: Draft, event: ev.Attached) -> str:
    return _commit_when_ready(draft, "attached")


def _commit_when_ready(draft: Draft, what: str) -> str:
    if draft.move.pending:
        return f"{what}; {_under_way(draft)}"
    draft.enter(MovePhase.ATTACHED)
    draft.run(Step.RECORD_COMMIT)
    return f"{what}; swap the owner"


def _commit_recorded(draft: Draft, event: ev.CommitRecorded) -> str:
    draft.enter(MovePhase.COMMITTED)
    draft.run(Step.ACTIVATE)
    return "the target owns the session; activate"


def _commit_lost(draft: Draft, event: ev.CommitLost) -> str:
    return _abandon(draft, event.failure)


def _under_way(draft: Draft) -> str:
    names = sorted(one.value for one, _ in draft.move.pending)
    return f"{' and '.join(names)} under way"


def _failed(draft: Draft, event: ev.Failed) -> str:
    if event.step is Step.RECORD_COMMIT:
        # Whether it took effect is known to the directory only: it is asked, never assumed.
        raise InvariantBroken(f"move {draft.move.move_id}: a commit cannot just fail")
    return _abandon(draft, event.failure)


def _give_up(draft: Draft, event: ev.RollbackAsked) -> str:
    if draft.move.commit_undecided:
        return "the directory decides"
    return _abandon(draft, event.failure)


def _deadline(draft: Draft, event: ev.DeadlinePassed) -> str:
    if draft.move.commit_undecided:
        return "the directory decides"
    phase = draft.move.phase.name
    if draft.move.resting:
        return _abandon(
            draft,
            Failure("DeadlineExceeded", "NO_VERB", f"no further verb came while {phase}"),
        )
    return _abandon(
        draft,
        Failure("DeadlineExceeded", "PHASE_DEADLINE", f"{phase} lasted longer than its limit"),
    )


def _abandon(draft: Draft, failure: Failure) -> str:
    verdict = draft.move.verdict
    if verdict is None or verdict.admitted:
        draft.set(failure=draft.move.failure or failure)
    _undo(draft)
    return f"roll back: {failure.reason}"


def _undo(draft: Draft) -> None:
    """Stop what is under way and undo whatever may have taken effect."""
    move = draft.move
    draft.cancel_all()
    draft.enter(MovePhase.ROLLING_BACK)
    if move.was_issued(Step.FREEZE):
        draft.run(Step.THAW_SOURCE)
    if move.was_issued(Step.ATTACH):
        # The engine unmaps before the mover takes the slot back.
        draft.run(Step.DETACH_TARGET)
    elif move.was_issued(Step.RESERVE):
        draft.run(Step.RELEASE_TARGET)
    elif move.was_issued(Step.ASK_ADMISSION):
        draft.run(Step.FINISH_TICKET)
    _end_when_settled(draft)


# --- obligations ---------------------------------------------------------------------------


def _settled_back(draft: Draft, event: ev.Settled) -> str:
    if event.step is Step.THAW_SOURCE and event.outcome is not Outcome.DONE:
        draft.set(lost=True)
    elif event.step is Step.DETACH_TARGET:
        draft.run(Step.RELEASE_TARGET)
    elif event.step is Step.RELEASE_TARGET:
        # Last: the hold keeps others off a receiver that is still busy with us.
        draft.run(Step.FINISH_TICKET)
    _end_when_settled(draft)
    return f"{event.step.name}: {event.outcome.value}"


def _settled_forward(draft: Draft, event: ev.Settled) -> str:
    if event.step is Step.ACTIVATE:
        if event.outcome is not Outcome.DONE:
            draft.set(lost=True)
        draft.run(Step.DETACH_SOURCE, Step.FINISH_TICKET)
    elif event.step is Step.DETACH_SOURCE:
        draft.run(Step.RELEASE_SOURCE)
    _end_when_settled(draft)
    return f"{event.step.name}: {event.outcome.value}"


def _end_when_settled(draft: Draft) -> None:
    move = draft.move
    if move.pending:
        return
    if move.phase is MovePhase.COMMITTED:
        draft.enter(MovePhase.DONE)
    elif move.verdict is not None and not move.verdict.admitted:
        draft.enter(MovePhase.REJECTED)
    else:
        draft.enter(MovePhase.ABORTED)


def _not_now(draft: Draft, event: ev.Event) -> str:
    return "not now"


def _too_late(draft: Draft, event: ev.Event) -> str:
    return "too late: the outcome is decided"


# --- the table -----------------------------------------------------------------------------

_Handler = Callable[[Draft, "ev.Event"], str]


def _build_table() -> dict[tuple[MovePhase, type], _Handler]:
    phase = MovePhase
    table: dict[tuple[MovePhase, type], Callable[..., str]] = {
        (phase.REQUESTED, ev.Begin): _begin,
        (phase.REQUESTED, ev.Admitted): _admitted,
        (phase.REQUESTED, ev.Refused): _refused,
        (phase.REQUESTED, ev.Probed): _probed,
        (phase.REQUESTED, ev.Asked): _not_now,
        (phase.ADMITTED, ev.Asked): _asked_stage,
        (phase.ADMITTED, ev.Reserved): _reserved,
        (phase.ADMITTED, ev.Warmed): _warmed,
        (phase.ADMITTED, ev.Armed): _armed,
        (phase.ADMITTED, ev.Refused): _refused,
        (phase.RESERVED, ev.Frozen): _frozen,
        (phase.RESERVED, ev.Asked): _not_now,
        (phase.FROZEN, ev.Pushed): _pushed,
        (phase.FROZEN, ev.Asked): _not_now,
        (phase.STAGED, ev.Asked): _asked_verify,
        (phase.STAGED, ev.VerifiedEqual): _verified_equal,
        (phase.STAGED, ev.VerifiedUnequal): _verified_unequal,
        (phase.STAGED, ev.Attached): _attached,
        (phase.VERIFIED, ev.Asked): _asked_verify,
        (phase.VERIFIED, ev.VerifiedEqual): _verified_equal,
        (phase.VERIFIED, ev.VerifiedUnequal): _verified_unequal,
        (phase.VERIFIED, ev.Attached): _attached,
        (phase.ATTACHED, ev.CommitRecorded): _commit_recorded,
        (phase.ATTACHED, ev.CommitLost): _commit_lost,
        (phase.ATTACHED, ev.Asked): _not_now,
        (phase.COMMITTED, ev.Settled): _settled_forward,
        (phase.ROLLING_BACK, ev.Settled): _settled_back,
    }
    for before in BEFORE_COMMIT:
        table[before, ev.Failed] = _failed
        table[before, ev.RollbackAsked] = _give_up
        table[before, ev.DeadlinePassed] = _deadline
    for after in set(MovePhase) - BEFORE_COMMIT:
        for event in (ev.Asked, ev.RollbackAsked, ev.DeadlinePassed):
            table[after, event] = _too_late
    for begun in set(MovePhase) - {phase.REQUESTED}:
        table[begun, ev.Begin] = _not_now
    return table


#: (phase, event) to what happens; what is not here cannot happen.
_TABLE = _build_table()
