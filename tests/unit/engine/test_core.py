"""The core, told as scenarios: events in, phases and effects out; no loop, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine import events as ev
from services.engine.core import ASK_AFTER_S, PENDING_MAX, Decision, Phase, World, decide
from services.engine.world import Action
from worldline.errors import CapacityExhausted, Conflict, Fenced, InvalidInput, InvariantBroken

COMMITTED = ev.MoveOutcome(committed=True)
ENDED = ev.MoveOutcome(ended=True)
OVER = ev.MoveOutcome(committed=True, over=True)
OPEN = ev.MoveOutcome()


def world(phase: Phase = Phase.RUNNING, **facts: object) -> World:
    return replace(World("s1", epoch=3, phase=phase, block_index=10), **facts)


def frozen(phase: Phase = Phase.FROZEN) -> World:
    return world(phase, move_id="m1", heard_at=100.0)


def attached() -> World:
    return world(Phase.ATTACHED, move_id="m1", heard_at=100.0)


def after(start: World, *events: ev.Event, now: float = 100.0) -> Decision:
    decision = Decision(start, "start")
    for event in events:
        decision = decide(decision.world, event, now)
    return decision


def act(block_index: int) -> ev.ActionArrived:
    return ev.ActionArrived(Action(block_index))


def test_a_block_from_action_to_boundary() -> None:
    done = after(world(Phase.OPENING), ev.Opened(), act(10), ev.Dispatched())
    assert done.world.phase is Phase.GENERATING
    assert done.world.next_action_index == 11
    done = after(done.world, ev.BlockDone())
    assert (done.world.phase, done.world.block_index) == (Phase.RUNNING, 11)


def test_a_freeze_in_the_middle_of_a_block_waits_for_its_boundary() -> None:
    mid = after(world(), act(10), act(11), ev.Dispatched(), ev.FreezeAsked(3, "m1"))
    assert mid.world.phase is Phase.FREEZING
    done = after(mid.world, ev.BlockDone(), now=200.0)
    assert done.world.phase is Phase.FROZEN
    assert done.world.block_index == 11
    assert done.world.heard_at == 200.0
    # The waiting action is kept, and not begun.
    assert len(done.world.pending) == 1
    with pytest.raises(Conflict):
        after(done.world, ev.Dispatched())


def test_a_freeze_between_blocks_is_at_once_and_idempotent() -> None:
    once = after(world(), ev.FreezeAsked(3, "m1"))
    assert once.world.phase is Phase.FROZEN
    assert after(once.world, ev.FreezeAsked(3, "m1")).world.phase is Phase.FROZEN
    with pytest.raises(Conflict) as other:
        after(once.world, ev.FreezeAsked(3, "m2"))
    assert other.value.reason == "OTHER_MOVE"


@pytest.mark.parametrize("phase", [Phase.FROZEN, Phase.FREEZING])
def test_a_thaw_undoes_the_freeze_and_a_late_freeze_is_refused(phase: Phase) -> None:
    thawed = after(frozen(phase), ev.ThawAsked(3, "m1"))
    expected = Phase.RUNNING if phase is Phase.FROZEN else Phase.GENERATING
    assert thawed.world.phase is expected
    assert after(thawed.world, ev.ThawAsked(3, "m1")).world.phase is expected
    with pytest.raises(Conflict) as late:
        after(thawed.world, ev.FreezeAsked(3, "m1"))
    assert late.value.reason == "MOVE_ENDED"
    # The next move is another matter.
    assert after(thawed.world, ev.FreezeAsked(3, "m2")).world.move_id == "m2"


def test_a_thaw_that_overtook_its_freeze_wins() -> None:
    done = after(world(), ev.ThawAsked(3, "m1"))
    assert done.world.phase is Phase.RUNNING
    with pytest.raises(Conflict):
        after(done.world, ev.FreezeAsked(3, "m1"))


def test_abort_and_retry_fifty_times_restores_everything() -> None:
    start = world()
    now = start
    for attempt in range(50):
        now = after(now, ev.FreezeAsked(3, f"m{attempt}"), ev.ThawAsked(3, f"m{attempt}")).world
    assert replace(now, ended_moves=(), heard_at=0.0) == start
    assert len(now.ended_moves) <= 16


@pytest.mark.parametrize(
    "event",
    [ev.FreezeAsked(2, "m1"), ev.FreezeAsked(4, "m1"), ev.ThawAsked(2, "m1"), ev.CloseAsked(2)],
)
def test_another_epoch_is_fenced(event: ev.Event) -> None:
    with pytest.raises(Fenced, match="epoch 3"):
        after(world(), event)


def test_time_alone_never_thaws() -> None:
    """A move may have committed while placement was silent: only its word decides."""
    early = after(frozen(), ev.AskTimerFired(), now=100.0 + ASK_AFTER_S / 2)
    assert early.effects == ()
    asked = after(frozen(), ev.AskTimerFired(), now=100.0 + ASK_AFTER_S)
    assert asked.effects == (ev.AskMove("m1"),)
    assert asked.world.phase is Phase.FROZEN
    # Not again before another silence.
    assert after(asked.world, ev.AskTimerFired(), now=100.1 + ASK_AFTER_S).effects == ()
    for outcome in (OPEN, COMMITTED):
        told = after(asked.world, ev.MoveAnswered("m1", outcome), now=200.0)
        assert told.world.phase is Phase.FROZEN
        assert told.world.heard_at == 200.0
    told = after(asked.world, ev.MoveAnswered("m1", ENDED))
    assert told.world.phase is Phase.RUNNING
    # An answer about an older move says nothing.
    assert after(asked.world, ev.MoveAnswered("m0", ENDED)).world.phase is Phase.FROZEN


def test_the_source_of_a_committed_move_sends_its_client_on() -> None:
    done = after(frozen(), ev.DetachAsked("m1", "10.0.0.2:7", epoch=4))
    assert done.world.phase is Phase.RELEASED
    assert done.effects == (ev.EndWorld(ev.Ending(engine_address="10.0.0.2:7", epoch=4)),)
    assert after(done.world, ev.DetachAsked("m1", "10.0.0.2:7", epoch=4)).effects == ()


def test_engines_that_were_not_heard_catch_up_with_a_move_that_is_over() -> None:
    """Stopped across the commit: the source lets go, the target owns what it has."""
    source = after(frozen(), ev.MoveAnswered("m1", OVER))
    assert source.world.phase is Phase.RELEASED
    (ended,) = source.effects
    assert isinstance(ended, ev.EndWorld)
    assert isinstance(ended.ending.error, Fenced)
    target = after(attached(), ev.MoveAnswered("m1", OVER))
    assert (target.world.phase, target.world.epoch) == (Phase.RUNNING, 4)
    for staged in (frozen(), attached()):
        assert after(staged, ev.MoveAnswered("m0", OVER)).world == staged


def test_a_frozen_source_is_not_dropped_without_a_new_home() -> None:
    with pytest.raises(InvalidInput) as refused:
        after(frozen(), ev.DetachAsked("m1"))
    assert refused.value.field == "engine_address"
    with pytest.raises(Fenced):
        after(frozen(), ev.DetachAsked("m1", "10.0.0.2:7", epoch=3))
    with pytest.raises(Conflict):
        after(frozen(), ev.DetachAsked("m0", "10.0.0.2:7", epoch=4))
    with pytest.raises(Conflict):
        after(world(), ev.DetachAsked("m1", "10.0.0.2:7", epoch=4))


def test_a_staged_world_generates_only_after_activation() -> None:
    with pytest.raises(Conflict):
        after(attached(), act(10))
    with pytest.raises(Fenced):
        after(attached(), ev.ActivateAsked("m1", 3))
    with pytest.raises(Conflict):
        after(attached(), ev.ActivateAsked("m2", 4))
    done = after(attached(), ev.ActivateAsked("m1", 4))
    assert (done.world.phase, done.world.epoch) == (Phase.RUNNING, 4)
    assert after(done.world, ev.ActivateAsked("m1", 4)).world == done.world
    with pytest.raises(Conflict):
        after(done.world, ev.ActivateAsked("m2", 4))


def test_a_staged_world_of_an_aborted_move_goes_away() -> None:
    for event in (ev.DetachAsked("m1"), ev.MoveAnswered("m1", ENDED)):
        done = after(attached(), event)
        assert done.world.phase is Phase.RELEASED
        assert isinstance(done.effects[0], ev.EndWorld)
    kept = after(attached(), ev.MoveAnswered("m1", COMMITTED))
    assert kept.world.phase is Phase.ATTACHED


def test_closing_waits_for_the_boundary() -> None:
    mid = after(world(), act(10), ev.Dispatched(), ev.CloseAsked(3))
    assert mid.world.phase is Phase.CLOSING
    assert mid.effects == ()
    assert after(mid.world, ev.CloseAsked(3)).world == mid.world
    with pytest.raises(Conflict):
        after(mid.world, act(11))
    done = after(mid.world, ev.BlockDone())
    assert done.world.phase is Phase.RELEASED
    assert done.world.block_index == 11
    (effect,) = done.effects
    assert isinstance(effect, ev.EndWorld)
    assert effect.ending.error is not None
    assert effect.ending.error.reason == "SESSION_CLOSED"


def test_closing_between_blocks_is_at_once() -> None:
    done = after(world(), ev.CloseAsked(3))
    assert done.world.phase is Phase.RELEASED
    assert after(done.world, ev.CloseAsked(3)).effects == ()


def test_lost_ownership_ends_the_world_without_its_block() -> None:
    idle = after(world(), ev.OwnershipLost())
    assert idle.world.phase is Phase.RELEASED
    mid = after(world(), act(10), ev.Dispatched(), ev.OwnershipLost())
    assert mid.world.phase is Phase.CLOSING
    assert mid.world.disowned
    assert not after(world(), act(10), ev.Dispatched(), ev.CloseAsked(3)).world.disowned
    assert mid.world.ending is not None
    assert mid.world.ending.error is not None
    done = after(mid.world, ev.BlockFailed(mid.world.ending.error))
    assert isinstance(done.effects[0], ev.EndWorld)
    with pytest.raises(Conflict):
        after(frozen(), ev.OwnershipLost())  # a frozen world asks about its move instead


@pytest.mark.parametrize("phase", [Phase.GENERATING, Phase.FREEZING, Phase.CLOSING])
def test_a_failed_block_ends_the_world_whatever_was_asked(phase: Phase) -> None:
    error = InvariantBroken("boom")
    done = after(world(phase, move_id="m1"), ev.BlockFailed(error))
    assert done.world.phase is Phase.RELEASED
    assert done.effects == (ev.EndWorld(ev.Ending(error=error, failed=True)),)


@pytest.mark.parametrize("wrong", [9, 11, 0])
def test_actions_are_consecutive(wrong: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        after(world(), act(wrong))
    assert refused.value.field == "action.block_index"


def test_waiting_actions_are_bounded_and_forgotten_with_their_stream() -> None:
    full = after(world(), *(act(10 + i) for i in range(PENDING_MAX)))
    with pytest.raises(CapacityExhausted):
        after(full.world, act(10 + PENDING_MAX))
    gone = after(full.world, ev.StreamEnded())
    assert gone.world.pending == ()
    assert gone.world.next_action_index == 10
    # The block in flight is not forgotten.
    mid = after(full.world, ev.Dispatched(), ev.StreamEnded())
    assert mid.world.next_action_index == 11


def test_without_a_period_nothing_is_missed() -> None:
    begun = after(world(), act(10), ev.Dispatched(), now=100.0)
    assert after(begun.world, ev.BlockDone(), now=500.0).world.pace.missed_periods == 0


EVENTS = st.one_of(
    st.just(ev.Opened()),
    st.integers(0, 30).map(act),
    st.just(ev.StreamEnded()),
    st.just(ev.Dispatched()),
    st.just(ev.BlockDone()),
    st.builds(ev.FreezeAsked, st.integers(2, 5), st.sampled_from(["m1", "m2"])),
    st.builds(ev.ThawAsked, st.integers(2, 5), st.sampled_from(["m1", "m2"])),
    st.builds(ev.ActivateAsked, st.sampled_from(["m1", "m2"]), st.integers(2, 5)),
    st.builds(
        ev.DetachAsked,
        st.sampled_from(["m1", "m2"]),
        st.sampled_from(["", "a:1"]),
        st.integers(2, 5),
    ),
    st.builds(ev.CloseAsked, st.integers(2, 5)),
    st.just(ev.OwnershipLost()),
    st.just(ev.AskTimerFired()),
    st.builds(
        ev.MoveAnswered,
        st.sampled_from(["m1", "m2"]),
        st.sampled_from([OPEN, ENDED, COMMITTED, OVER]),
    ),
)


@given(st.sampled_from([world(Phase.OPENING), world(), attached()]), st.lists(EVENTS, max_size=40))
def test_no_order_of_events_breaks_the_invariants(start: World, events: list[ev.Event]) -> None:
    now, time, staged = start, 100.0, start.phase is Phase.ATTACHED
    activated = not staged
    for event in events:
        time += 1.0
        try:
            decision = decide(now, event, time)
        except (Conflict, Fenced, InvalidInput, CapacityExhausted):
            continue
        following = decision.world
        # Blocks and epochs never go back; an epoch grows only by placement's word.
        assert following.block_index in (now.block_index, now.block_index + 1)
        if following.epoch != now.epoch:
            assert isinstance(event, ev.ActivateAsked) or getattr(event, "outcome", OPEN).over
            activated = True
        assert following.epoch in (now.epoch, now.epoch + 1)
        # Nothing generates that was staged and not activated.
        if following.mid_block:
            assert activated
        # Frozen is left by placement's word only.
        if now.phase is Phase.FROZEN and following.phase is not Phase.FROZEN:
            assert isinstance(event, ev.ThawAsked | ev.DetachAsked | ev.MoveAnswered)
        # Released is for ever, and is announced exactly once.
        ends = [effect for effect in decision.effects if isinstance(effect, ev.EndWorld)]
        assert len(ends) == (now.phase is not Phase.RELEASED is following.phase)
        if now.phase is Phase.RELEASED:
            assert following.phase is Phase.RELEASED
        # A block in flight ends before anything else happens to the world.
        if now.mid_block and not following.mid_block:
            assert isinstance(event, ev.BlockDone)
        assert len(following.pending) <= PENDING_MAX
        now = following
