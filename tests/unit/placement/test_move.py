"""The move machine under events in any order, any number, any lateness."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import events as ev
from services.placement.limits import Limits
from services.placement.move import Move, expired, step
from services.placement.move_state import Transition
from services.placement.phases import OBLIGATIONS, Goal, MovePhase, Outcome, Step
from services.placement.recovery import resume
from services.placement.values import Failure, Party, PushFigures, SlotName, Ticket
from worldline.errors import InvalidInput, InvariantBroken
from worldline.v1 import move_pb2
from worldline.verdict import RejectReason, Verdict

LIMITS = Limits()
FAILURE = Failure("TransferFailed", "BROKEN", "broken")
TICKET = Ticket("t", valid_for_ms=1_000, lease_ms=500, horizon_ms=40_000.0, move_ms=10_000.0)
#: Another candidate than the first.
OTHER = Party("e3", "i3", "n3", "j3")


def new_move(goal: Goal = Goal.COMMIT) -> Move:
    return Move(
        move_id="m",
        session_id="s",
        source=Party("e1", "i1", "n1", "j1"),
        target=Party("e2", "i2", "n2", "j2"),
        source_epoch=3,
        goal=goal,
    )


def completions(step_of: Step, attempt: int) -> list[ev.Event]:
    """Every way a step can complete."""
    if step_of in OBLIGATIONS:
        return [ev.Settled(attempt, step_of, outcome) for outcome in Outcome]
    failed: ev.Event = ev.Failed(attempt, step_of, FAILURE)
    good: dict[Step, list[ev.Event]] = {
        Step.ASK_ADMISSION: [
            ev.Admitted(attempt, TICKET, Verdict.admit("yes"), OTHER, tier_dropped=False),
            ev.Refused(attempt, step_of, Verdict.reject(RejectReason.PATH_UNMEASURED, "no")),
            ev.Refused(attempt, step_of, Verdict.reject(RejectReason.PATH_UNMEASURED, "no"), OTHER),
            ev.Refused(attempt, step_of, Verdict.reject(RejectReason.RECEIVER_BUSY, "no")),
            failed,
        ],
        Step.PROBE: [
            ev.Probed(attempt),
            ev.Refused(attempt, step_of, Verdict.reject(RejectReason.RECEIVER_BUSY, "no")),
            failed,
        ],
        Step.RESERVE: [
            ev.Reserved(attempt, "r", SlotName("n2", 0, 1)),
            ev.Refused(attempt, step_of, Verdict.reject(RejectReason.TARGET_FULL, "no")),
            failed,
        ],
        Step.WARM: [ev.Warmed(attempt), failed],
        Step.ARM: [
            ev.Armed(attempt),
            ev.Refused(attempt, step_of, Verdict.reject(RejectReason.WIRE_TOO_LATE, "no")),
            failed,
        ],
        Step.FREEZE: [ev.Frozen(attempt, SlotName("n1", 0, 1), 7), failed],
        Step.PUSH: [ev.Pushed(attempt, 1, 1, PushFigures(1, 1, 1, 1, 1.0, 0.0, 1)), failed],
        Step.VERIFY: [ev.VerifiedEqual(attempt, 1), ev.VerifiedUnequal(attempt, FAILURE), failed],
        Step.ATTACH: [ev.Attached(attempt), failed],
        # A commit never just fails: the directory is asked until it answers.
        Step.RECORD_COMMIT: [ev.CommitRecorded(attempt), ev.CommitLost(attempt, FAILURE)],
    }
    return good[step_of]


class Story:
    """Feeds a machine and keeps count of what it did."""

    def __init__(self, move: Move) -> None:
        self.move = move
        self.now = 0.0
        self.ran: list[tuple[Step, MovePhase]] = []
        self.settled: Counter[Step] = Counter()

    def feed(self, event: ev.Event) -> Transition:
        before = self.move
        issue = (getattr(event, "step", None), getattr(event, "attempt", 0))
        awaited = issue in before.pending
        transition = step(before, event, self.now, LIMITS)
        self.move = transition.move
        if isinstance(event, ev.Settled) and awaited:
            self.settled[event.step] += 1
        for action in transition.actions:
            if isinstance(action, ev.Run):
                self.ran.append((action.step, self.move.phase))
        if before.phase.terminal:
            assert (self.move.phase, transition.actions) == (before.phase, ())
        return transition

    def finish(self) -> None:
        """Let everything outstanding end well, give the move up where it rests."""
        for _ in range(40):
            if self.move.phase.terminal:
                return
            if self.move.pending:
                issue = min(self.move.pending, key=lambda pair: (pair[0].name, pair[1]))
                self.feed(completions(*issue)[0])
            else:
                self.feed(ev.RollbackAsked(FAILURE) if self.move.issued else ev.Begin())
        pytest.fail("the move does not end: " + " | ".join(self.move.story))

    def check_end(self) -> None:
        ran = Counter(one for one, _ in self.ran)
        phase = self.move.phase
        assert all(self.settled[one] == ran[one] for one in OBLIGATIONS), "an obligation is open"
        if phase is MovePhase.DONE:
            assert self.settled[Step.RELEASE_SOURCE] == 1
            assert ran[Step.RELEASE_TARGET] == ran[Step.THAW_SOURCE] == 0
            assert ran[Step.ACTIVATE] == ran[Step.FINISH_TICKET] == 1
        else:
            assert ran[Step.ACTIVATE] == ran[Step.RELEASE_SOURCE] == 0
            assert self.settled[Step.RELEASE_TARGET] == min(1, ran[Step.RESERVE])
            assert self.settled[Step.THAW_SOURCE] == min(1, ran[Step.FREEZE])
            assert self.settled[Step.DETACH_TARGET] == min(1, ran[Step.ATTACH])
        # Exactly one outcome, with its reason.
        rejected = self.move.verdict is not None and not self.move.verdict.admitted
        assert (phase is MovePhase.REJECTED) == rejected
        assert (phase is MovePhase.ABORTED) == (self.move.failure is not None)
        assert not self.move.pending


def check_order(story: Story) -> None:
    committed = False
    for one, phase in story.ran:
        committed = committed or phase is MovePhase.COMMITTED
        if one is Step.THAW_SOURCE:
            assert not committed
        if one in (Step.ACTIVATE, Step.DETACH_SOURCE, Step.RELEASE_SOURCE):
            assert committed


@settings(max_examples=150, deadline=None)
@given(data=st.data(), goal=st.sampled_from(Goal))
def test_any_order_of_events_is_harmless(data: st.DataObject, goal: Goal) -> None:
    story = Story(new_move(goal))
    story.feed(ev.Begin())
    for _ in range(data.draw(st.integers(0, 30))):
        # Late, repeated and out of turn: any completion of anything ever issued.
        issued = sorted(story.move.issued, key=lambda pair: (pair[0].name, pair[1]))
        events: list[ev.Event] = [one for issue in issued for one in completions(*issue)]
        pending = sorted(story.move.pending, key=lambda pair: (pair[0].name, pair[1]))
        # The likely ones more often, so that runs get far.
        events += [completions(*issue)[0] for issue in pending] * 6
        events += [ev.Begin(), ev.RollbackAsked(FAILURE), ev.DeadlinePassed()]
        events += [ev.Asked(one) for one in Goal]
        story.feed(data.draw(st.sampled_from(events)))
    story.finish()
    story.check_end()
    check_order(story)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), goal=st.sampled_from(Goal))
def test_a_crash_anywhere_resolves_to_one_owner(data: st.DataObject, goal: Goal) -> None:
    story = Story(new_move(goal))
    story.feed(ev.Begin())
    for _ in range(data.draw(st.integers(0, 25))):
        pending = sorted(story.move.pending, key=lambda pair: (pair[0].name, pair[1]))
        events: list[ev.Event] = [one for issue in pending for one in completions(*issue)]
        events += [completions(*issue)[0] for issue in pending] * 4
        events += [ev.Asked(one) for one in Goal]
        story.feed(data.draw(st.sampled_from(events)))
    if story.move.phase.terminal:
        return
    committed = story.move.phase is MovePhase.COMMITTED
    unsettled = {one for one, _ in story.move.pending if one in OBLIGATIONS}
    issued_before = {one for one, _ in story.move.issued}
    # What the process held in memory is gone; with the power, phases before the commit are too.
    phase = story.move.phase
    if not committed:
        earlier = [one for one in MovePhase if one.before_commit and one <= phase]
        phase = data.draw(st.sampled_from([*earlier, phase]))
    durable = replace(
        story.move, phase=phase, issued=frozenset(), pending=frozenset(), deadline_s=None
    )
    resumption = resume(durable)
    after = Story(resumption.move)
    after.ran = [(action.step, resumption.move.phase) for action in resumption.actions]
    for event in resumption.events:
        after.feed(event)
    after.finish()
    check_order(after)
    ran = {one for one, _ in after.ran}
    if committed:
        assert after.move.phase is MovePhase.DONE
        assert {Step.ACTIVATE, Step.DETACH_SOURCE, Step.RELEASE_SOURCE} <= ran
    else:
        assert after.move.phase in (MovePhase.ABORTED, MovePhase.REJECTED)
        undone = {
            Step.FREEZE: Step.THAW_SOURCE,
            Step.ATTACH: Step.DETACH_TARGET,
            Step.RESERVE: Step.RELEASE_TARGET,
        }
        assert {undone[one] for one in issued_before & undone.keys()} <= ran
        assert Step.FINISH_TICKET in ran
    assert unsettled <= ran


def test_a_completion_of_a_step_never_issued_is_a_bug() -> None:
    with pytest.raises(InvariantBroken, match=r"never issued.*story"):
        step(new_move(), ev.CommitRecorded(1), 0.0, LIMITS)


def test_a_commit_cannot_just_fail() -> None:
    story = Story(new_move())
    story.feed(ev.Begin())
    while not story.move.awaits(Step.RECORD_COMMIT):
        story.feed(completions(*min(story.move.pending, key=lambda one: one[0].name))[0])
    with pytest.raises(InvariantBroken, match="cannot just fail"):
        story.feed(ev.Failed(1, Step.RECORD_COMMIT, FAILURE))


def test_first_failure_is_the_one_told() -> None:
    story = Story(new_move())
    story.feed(ev.Begin())
    story.feed(ev.RollbackAsked(replace(FAILURE, reason="FIRST")))
    story.feed(ev.RollbackAsked(replace(FAILURE, reason="SECOND")))
    story.finish()
    assert story.move.failure is not None
    assert story.move.failure.reason == "FIRST"


def test_deadline_waits_for_an_undecided_commit() -> None:
    story = Story(new_move())
    story.feed(ev.Begin())
    assert expired(story.move, LIMITS.requested_s)
    while not story.move.awaits(Step.RECORD_COMMIT):
        story.feed(completions(*min(story.move.pending, key=lambda one: one[0].name))[0])
    assert not expired(story.move, 1e9)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_limits_are_finite_and_positive(value: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Limits(frozen_s=value)
    assert caught.value.field == "frozen_s"


def test_phases_have_the_numbers_of_the_wire() -> None:
    wire = {
        name.removeprefix("MOVE_PHASE_"): number
        for name, number in move_pb2.MovePhase.items()
        if number
    }
    assert {phase.name: int(phase) for phase in MovePhase} == wire
