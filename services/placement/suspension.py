"""Suspension: one attempt to suspend a session or to resume it, as a state machine without I/O.

`step(suspension, event, now)` gives the next state, the actions to take and why. Both ways have
one shape: steps that can be undone, one after the other; then one transaction of the directory,
which alone decides; then obligations that are pursued to their end.

Invariants:
- What may have taken effect is undone: whatever was *issued*, acknowledged or not.
- THAW never runs after RECORDED; ACTIVATE, and the release of a suspended session's slot, never
  before it.
- A parked copy is dropped by a suspend that is undone and by a resume that is recorded, and by
  nothing else.
- A completion that is not awaited (late, repeated) changes nothing; one of a step that was never
  issued is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from services.placement.phases import Outcome
from services.placement.values import Failure, Party, SlotName
from worldline.contract import Contract
from worldline.errors import InvariantBroken
from worldline.park import ParkKind, SuspensionPhase, SuspensionVerb
from worldline.state.manifest import Fingerprint

#: How long the steps before the record may take together; their own deadlines are shorter.
BEGUN_S = 300.0


class Step(Enum):
    """One piece of work outside the machine; the value names its span, its time and log lines."""

    FREEZE = "freeze"
    PARK = "park"
    UNPARK = "unpark"
    ATTACH = "attach"
    RECORD = "record"
    DETACH = "detach"
    RELEASE = "release"
    THAW = "thaw"
    ACTIVATE = "activate"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one verb does: `forward` in order, the record, `after` in order.

    `undo` pairs a step that may have taken effect with what undoes it, in the order of undoing.
    """

    forward: tuple[Step, ...]
    after: tuple[Step, ...]
    undo: tuple[tuple[Step, Step], ...]


PLANS = {
    SuspensionVerb.SUSPEND: Plan(
        forward=(Step.FREEZE, Step.PARK, Step.RECORD),
        # The engine unmaps before the mover takes the slot back.
        after=(Step.DETACH, Step.RELEASE),
        # The world first: its client waits.
        undo=((Step.FREEZE, Step.THAW), (Step.PARK, Step.DROP)),
    ),
    SuspensionVerb.RESUME: Plan(
        forward=(Step.UNPARK, Step.ATTACH, Step.RECORD),
        after=(Step.ACTIVATE, Step.DROP),
        undo=((Step.ATTACH, Step.DETACH), (Step.UNPARK, Step.RELEASE)),
    ),
}
#: What becomes of the world itself: where one of these is not met, it runs nowhere.
_VITAL = (Step.THAW, Step.ACTIVATE)
#: What a mover says when the copy is gone for good, and with it the world.
_GONE = "PARKED_UNKNOWN"


@dataclass(frozen=True, slots=True)
class ParkFigures:
    """What a crossing took; times in milliseconds."""

    copied_bytes: int = 0
    copy_ms: float = 0.0
    verify_ms: float = 0.0
    direct_io: bool = False


@dataclass(frozen=True, slots=True)
class Suspension:
    """A suspend or a resume as far as it has got; `deadline_s` is on the caller's clock."""

    suspension_id: str
    session_id: str
    verb: SuspensionVerb
    kind: ParkKind
    park_id: str
    #: The engine that lets the world go or takes it up, its node, and their incarnations.
    party: Party
    #: The epoch that it starts from; a resume makes it one more.
    epoch: int
    phase: SuspensionPhase = SuspensionPhase.BEGUN
    deadline_s: float | None = None
    issued: frozenset[Step] = frozenset()
    pending: Step | None = None
    failure: Failure | None = None
    #: The world runs nowhere and nothing can bring it back.
    lost: bool = False
    #: The slot that is left or taken.
    slot: SlotName | None = None
    block_index: int = 0
    digest: int = 0
    figures: ParkFigures = field(default_factory=ParkFigures)
    #: What the state was frozen under.
    fingerprint: Fingerprint | None = None
    #: A resume: the session was at T0, and is at T1 from its record on.
    tier_dropped: bool = False
    story: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """What its verb does."""
        return PLANS[self.verb]

    @property
    def undecided(self) -> bool:
        """The directory is deciding: nobody else may."""
        return self.pending is Step.RECORD


def resumed_contract(suspension: Suspension, contract: Contract) -> Contract:
    """The session's contract after its record: at T1 where the resume dropped the tier."""
    return contract.dropped() if suspension.tier_dropped else contract


# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The record is durable: go."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step before the record succeeded; what it taught. None: nothing new."""

    step: Step
    slot: SlotName | None = None
    block_index: int | None = None
    digest: int | None = None
    figures: ParkFigures | None = None
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The directory has it."""

    step: Step = Step.RECORD


@dataclass(frozen=True, slots=True)
class RecordLost:
    """The directory has it not, and never will."""

    failure: Failure
    step: Step = Step.RECORD


@dataclass(frozen=True, slots=True)
class Failed:
    """A step before the record failed; whether it took effect may be unknown."""

    step: Step
    failure: Failure


@dataclass(frozen=True, slots=True)
class Settled:
    """An obligation came to its end."""

    step: Step
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Somebody who may gives it up."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The deadline is behind us."""


Event = Begin | Done | Recorded | RecordLost | Failed | Settled | GiveUp | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Run:
    """Action: do this step and report its completion."""

    step: Step


@dataclass(frozen=True, slots=True)
class Cancel:
    """Action: stop waiting for this step. Whether it took effect is unknown."""

    step: Step


Action = Run | Cancel


@dataclass(frozen=True, slots=True)
class Transition:
    """What one event did; `reason` says it in words."""

    suspension: Suspension
    actions: tuple[Action, ...]
    reason: str


# --- the machine -----------------------------------------------------------------------------


def step(suspension: Suspension, event: Event, now: float) -> Transition:
    """Take one event.

    Raises:
        InvariantBroken: the completion of a step that was never issued, or that phase and event
            do not go together; with the story.
    """
    late = _lateness(suspension, event)
    if late is not None:
        return Transition(suspension, (), late)
    if suspension.phase.terminal:
        return Transition(suspension, (), "over")
    transition = _take(suspension, event, now)
    line = (
        f"{suspension.phase.name} {type(event).__name__} -> "
        f"{transition.suspension.phase.name}: {transition.reason}"
    )
    if transition.suspension == suspension:
        return transition
    told = replace(transition.suspension, story=(*suspension.story, line))
    return replace(transition, suspension=told)


def expired(suspension: Suspension, now: float) -> bool:
    """Whether the deadline is behind `now` and it may still be given up."""
    if suspension.deadline_s is None or suspension.undecided:
        return False
    return suspension.phase is SuspensionPhase.BEGUN and now >= suspension.deadline_s


def recovered(suspension: Suspension, failure: Failure) -> tuple[Suspension, tuple[Event, ...]]:
    """How to go on with one that was found open: its state, and the first event.

    Before the record everything that may have been issued is undone; after it, every obligation
    is issued again. All of them are idempotent.
    """
    if suspension.phase is SuspensionPhase.RECORDED:
        # As if the directory had just answered.
        undecided = replace(
            suspension,
            phase=SuspensionPhase.BEGUN,
            issued=frozenset({Step.RECORD}),
            pending=Step.RECORD,
            deadline_s=None,
        )
        return undecided, (Recorded(),)
    begun = replace(
        suspension,
        phase=SuspensionPhase.BEGUN,
        issued=frozenset(suspension.plan.forward),
        pending=None,
        deadline_s=None,
    )
    return begun, (GiveUp(suspension.failure or failure),)


def _lateness(suspension: Suspension, event: Event) -> str | None:
    """Why a completion changes nothing; None for one that is awaited and for other events."""
    if isinstance(event, Begin | GiveUp | DeadlinePassed):
        return None
    if event.step is suspension.pending:
        return None
    if event.step in suspension.issued:
        return f"{type(event).__name__} of {event.step.name} is late or repeated: dropped"
    raise InvariantBroken(
        f"suspension {suspension.suspension_id} in {suspension.phase.name} got "
        f"{type(event).__name__} for {event.step.name}, which was never issued; "
        f"story: {' | '.join(suspension.story)}"
    )


def _take(suspension: Suspension, event: Event, now: float) -> Transition:
    if suspension.phase is SuspensionPhase.BEGUN:
        return _before_the_record(suspension, event, now)
    if isinstance(event, Settled):
        return _settled(replace(suspension, pending=None), event)
    if isinstance(event, Begin | GiveUp | DeadlinePassed):
        return Transition(suspension, (), "too late: the outcome is decided")
    raise InvariantBroken(
        f"suspension {suspension.suspension_id} has no transition for {type(event).__name__} in "
        f"{suspension.phase.name}; story: {' | '.join(suspension.story)}"
    )


def _before_the_record(suspension: Suspension, event: Event, now: float) -> Transition:
    match event:
        case Begin():
            if suspension.issued:
                return Transition(suspension, (), "already begun")
            begun = replace(suspension, deadline_s=now + BEGUN_S)
            return _run(begun, suspension.plan.forward[0], "begun")
        case Done():
            order = suspension.plan.forward
            following = order[order.index(event.step) + 1]
            return _run(_taught(suspension, event), following, f"{event.step.name} done")
        case Recorded():
            recorded = replace(suspension, phase=SuspensionPhase.RECORDED, deadline_s=None)
            return _run(recorded, suspension.plan.after[0], "the directory has it")
        case RecordLost() | Failed():
            return _failed(suspension, event)
        case GiveUp() if not suspension.undecided:
            return _undo(suspension, event.failure)
        case DeadlinePassed() if not suspension.undecided:
            return _undo(suspension, _TOO_LONG)
        case GiveUp() | DeadlinePassed():
            return Transition(suspension, (), "the directory decides")
        case Settled():
            raise InvariantBroken(f"{event.step.name} settled before the record")


_TOO_LONG = Failure(
    kind="DeadlineExceeded",
    reason="PHASE_DEADLINE",
    message="it lasted longer than its limit and was undone",
)


def _taught(suspension: Suspension, event: Done) -> Suspension:
    names = ("slot", "block_index", "digest", "figures", "fingerprint")
    learned = {name: getattr(event, name) for name in names}
    known = {name: value for name, value in learned.items() if value is not None}
    return replace(suspension, **known)


def _failed(suspension: Suspension, event: RecordLost | Failed) -> Transition:
    if isinstance(event, Failed) and event.step is Step.RECORD:
        # Whether it took effect is known to the directory only: it is asked, never assumed.
        raise InvariantBroken("a record cannot just fail")
    if event.step is Step.UNPARK and event.failure.reason == _GONE:
        suspension = replace(suspension, lost=True)
    return _undo(replace(suspension, pending=None), event.failure)


def _undo(suspension: Suspension, failure: Failure) -> Transition:
    """Stop what is under way and undo, one after the other, whatever may have taken effect."""
    cancel = () if suspension.pending is None else (Cancel(suspension.pending),)
    undoing = replace(
        suspension,
        phase=SuspensionPhase.UNDOING,
        pending=None,
        failure=suspension.failure or failure,
        deadline_s=None,
    )
    return _next(undoing, _undoings(undoing), f"undo: {failure.reason}", cancel)


def _undoings(suspension: Suspension) -> tuple[Step, ...]:
    return tuple(undoing for did, undoing in suspension.plan.undo if did in suspension.issued)


def _settled(suspension: Suspension, event: Settled) -> Transition:
    if event.step in _VITAL and event.outcome is not Outcome.DONE:
        suspension = replace(suspension, lost=True)
    undoing = suspension.phase is SuspensionPhase.UNDOING
    order = _undoings(suspension) if undoing else suspension.plan.after
    rest = order[order.index(event.step) + 1 :]
    return _next(suspension, rest, f"{event.step.name}: {event.outcome.value}")


def _next(
    suspension: Suspension, rest: tuple[Step, ...], reason: str, first: tuple[Action, ...] = ()
) -> Transition:
    """The next obligation of the rest, or the end."""
    if rest:
        return _run(suspension, rest[0], reason, first)
    undoing = suspension.phase is SuspensionPhase.UNDOING
    end = SuspensionPhase.ABORTED if undoing else SuspensionPhase.DONE
    return Transition(replace(suspension, phase=end), first, reason)


def _run(
    suspension: Suspension, one: Step, reason: str, first: tuple[Action, ...] = ()
) -> Transition:
    running = replace(suspension, pending=one, issued=suspension.issued | {one})
    return Transition(running, (*first, Run(one)), f"{reason}; {one.value}")
