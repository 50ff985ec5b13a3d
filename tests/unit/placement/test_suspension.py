"""The suspension machine under events in any order, any number, any lateness."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import suspension as machine
from services.placement.phases import Outcome
from services.placement.suspension import Step, Suspension, Transition, recovered, step
from services.placement.suspension_record import SuspensionEntry, entry_from_row, facts_to_json
from services.placement.values import Failure, Party, SlotName
from worldline.errors import InvariantBroken
from worldline.park import ParkKind, SuspensionPhase, SuspensionVerb

FAILURE = Failure("TransferFailed", "BROKEN", "broken")
OWED = (Step.DETACH, Step.RELEASE, Step.THAW, Step.ACTIVATE, Step.DROP)


def new_suspension(verb: SuspensionVerb) -> Suspension:
    return Suspension(
        suspension_id="s-1",
        session_id="s",
        verb=verb,
        kind=ParkKind.FILE,
        park_id="p",
        party=Party("e1", "i1", "n1", "j1"),
        epoch=3,
    )


def completions(one: Step) -> list[machine.Event]:
    """Every way a step can complete."""
    if one in OWED:
        return [machine.Settled(one, outcome) for outcome in Outcome]
    if one is Step.RECORD:
        # A record never just fails: the directory is asked until it answers.
        return [machine.Recorded(), machine.RecordLost(FAILURE)]
    return [machine.Done(one, slot=SlotName("n1", 0, 1)), machine.Failed(one, FAILURE)]


class Story:
    """Feeds a machine and keeps count of what it did."""

    def __init__(self, one: Suspension) -> None:
        self.one = one
        self.now = 0.0
        self.ran: list[tuple[Step, SuspensionPhase]] = []
        self.settled: Counter[Step] = Counter()
        self.recorded = False

    def feed(self, event: machine.Event) -> Transition:
        before = self.one
        awaited = getattr(event, "step", None) is before.pending and before.pending is not None
        transition = step(before, event, self.now)
        self.one = transition.suspension
        if isinstance(event, machine.Settled) and awaited:
            self.settled[event.step] += 1
        self.recorded |= isinstance(event, machine.Recorded) and awaited
        for action in transition.actions:
            if isinstance(action, machine.Run):
                self.ran.append((action.step, self.one.phase))
        if before.phase.terminal:
            assert (self.one, transition.actions) == (before, ())
        return transition

    def restart(self) -> None:
        self.one, events = recovered(self.one, FAILURE)
        for event in events:
            self.feed(event)

    def finish(self) -> None:
        for _ in range(20):
            if self.one.phase.terminal:
                return
            if self.one.pending is None:
                self.feed(machine.Begin() if not self.one.issued else machine.GiveUp(FAILURE))
            else:
                self.feed(completions(self.one.pending)[0])
        pytest.fail("it does not end: " + " | ".join(self.one.story))

    def check(self) -> None:
        """What holds at the end, whatever happened on the way."""
        ran = Counter(one for one, _ in self.ran)
        assert self.one.phase.terminal
        assert (self.one.phase is SuspensionPhase.DONE) == self.recorded
        suspends = self.one.verb is SuspensionVerb.SUSPEND
        for one, phase in self.ran:
            if one is Step.THAW:
                assert phase is SuspensionPhase.UNDOING
            if one is Step.ACTIVATE:
                assert phase is SuspensionPhase.RECORDED
        if self.recorded:
            owed = (Step.DETACH, Step.RELEASE) if suspends else (Step.ACTIVATE, Step.DROP)
            assert all(self.settled[one] >= 1 for one in owed)
            assert ran[Step.THAW] == 0
            assert not (suspends and ran[Step.DROP]), "the only copy was dropped"
            assert not (not suspends and ran[Step.RELEASE]), "the world's slot was released"
        else:
            assert ran[Step.ACTIVATE] == 0
            assert self.one.failure is not None
            undone = [(Step.FREEZE, Step.THAW), (Step.PARK, Step.DROP)]
            if not suspends:
                undone = [(Step.ATTACH, Step.DETACH), (Step.UNPARK, Step.RELEASE)]
                assert ran[Step.DROP] == 0, "a resume that failed dropped the copy"
            for did, undoing in undone:
                if ran[did]:
                    assert self.settled[undoing] >= 1, f"{did.name} is not undone"


@settings(max_examples=400)
@given(data=st.data(), verb=st.sampled_from(SuspensionVerb))
def test_whatever_happens_it_ends_in_one_place(data: st.DataObject, verb: SuspensionVerb) -> None:
    story = Story(new_suspension(verb))
    story.feed(machine.Begin())
    for _ in range(data.draw(st.integers(0, 14))):
        choices: list[machine.Event] = [
            machine.Begin(),
            machine.GiveUp(FAILURE),
            machine.DeadlinePassed(),
        ]
        if story.one.pending is not None:
            choices += completions(story.one.pending)
        for late in sorted(story.one.issued, key=lambda one: one.name):
            choices += completions(late)
        story.feed(data.draw(st.sampled_from(choices)))
        story.now += data.draw(st.sampled_from([0.0, 1.0]))
        if data.draw(st.booleans()) and not story.one.phase.terminal:
            # Only what the directory keeps outlives the process.
            kept = SuspensionPhase.RECORDED if story.recorded else SuspensionPhase.BEGUN
            story.one = through_the_directory(story.one, kept)
            story.restart()
    story.finish()
    story.check()


def through_the_directory(one: Suspension, phase: SuspensionPhase) -> Suspension:
    row = {
        "suspension_id": one.suspension_id,
        "session_id": one.session_id,
        "verb": int(one.verb),
        "epoch": one.epoch,
        "phase": int(phase),
        "facts": facts_to_json(SuspensionEntry(one)),
        "trace_id": "",
        "idempotency_key": None,
    }
    return entry_from_row(row).suspension


def test_a_completion_of_what_was_never_issued_is_a_bug() -> None:
    for event in (machine.Recorded(), machine.Settled(Step.THAW, Outcome.DONE)):
        with pytest.raises(InvariantBroken, match="never issued"):
            step(new_suspension(SuspensionVerb.SUSPEND), event, 0.0)


def test_a_record_cannot_just_fail() -> None:
    story = Story(new_suspension(SuspensionVerb.SUSPEND))
    for event in (machine.Begin(), machine.Done(Step.FREEZE), machine.Done(Step.PARK)):
        story.feed(event)
    with pytest.raises(InvariantBroken):
        story.feed(machine.Failed(Step.RECORD, FAILURE))


@given(
    digest=st.integers(0, 2**64 - 1),
    leaf=st.text(max_size=20),
    granule=st.none() | st.integers(0, 2**40),
    lost=st.booleans(),
    slot=st.none() | st.builds(SlotName, st.just("n1"), st.integers(0, 9), st.integers(1, 2**52)),
)
def test_facts_survive_the_directory(
    digest: int, leaf: str, granule: int | None, lost: bool, slot: SlotName | None
) -> None:
    one = Suspension(
        suspension_id="s-1",
        session_id="s",
        verb=SuspensionVerb.RESUME,
        kind=ParkKind.MEMORY,
        park_id="p",
        party=Party("e1", "i1", "n1", "j1"),
        epoch=3,
        failure=Failure("IntegrityError", "DIGEST_MISMATCH", "differs", leaf, granule),
        lost=lost,
        slot=slot,
        block_index=17,
        digest=digest,
        figures=machine.ParkFigures(5, 1.25, 0.5, True),
        story=("a", "b"),
    )
    assert through_the_directory(one, one.phase) == one
