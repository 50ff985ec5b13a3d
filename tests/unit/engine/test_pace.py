"""Pace, told through the core: releases, misses, skips, degraded blocks; no loop, no clock."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine import events as ev
from services.engine.core import Phase, World, decide
from services.engine.pace import Pace, pace_of
from services.engine.schedule.grid import WARM_BLOCKS_MAX
from services.engine.world import Action
from worldline.contract import Contract, ServiceClass

#: Divides without a rest, so that points are exact.
PERIOD_S = 2.0
CONTRACT = Contract(
    ServiceClass.C1_INTERACTIVE, 1_000.0, period_ms=PERIOD_S * 1e3, quality_floor_steps=1
)


def world(contract: Contract = CONTRACT) -> World:
    return World("s1", epoch=3, phase=Phase.RUNNING, block_index=0, pace=pace_of(contract))


def after(start: World, now: float, *events: ev.Event) -> World:
    for event in events:
        start = decide(start, event, now).world
    return start


def act(block_index: int) -> ev.ActionArrived:
    return ev.ActionArrived(Action(block_index))


def warm() -> World:
    """Its first block ended at 100: the grid's points are 100, 102, 104, ..."""
    return after(after(world(), 93.0, act(0), ev.Dispatched()), 100.0, ev.BlockDone())


def at(start: World) -> float:
    assert start.pace.release is not None
    return start.pace.release.release_at


def test_the_first_block_is_released_at_once_and_can_be_no_miss() -> None:
    first = after(world(), 93.0, act(0))
    assert at(first) == 93.0
    assert not first.pace.has_deadline
    assert first.pace.due_at == 94.0, "its horizon orders it"
    assert warm().pace.missed_periods == warm().pace.releases_skipped == 0


def test_a_transient_keeps_the_grid_closed() -> None:
    slow = ev.BlockDone(block_s=7.0, expected_s=1.0)
    now = world()
    for block in range(WARM_BLOCKS_MAX):
        assert not now.pace.has_deadline
        now = after(now, 100.0 + block, act(block), ev.Dispatched(), slow)
    grid = now.pace.grid
    assert grid is not None
    assert grid.anchor_at == 103.0, "no more than so many blocks are a transient"


def test_one_block_a_period() -> None:
    now = after(warm(), 100.5, act(1), act(2))
    assert (at(now), now.pace.due_at) == (102.0, 104.0)
    now = after(after(now, 102.0, ev.Dispatched()), 103.0, ev.BlockDone())
    assert (at(now), now.pace.due_at) == (104.0, 106.0)
    now = after(after(now, 104.0, ev.Dispatched()), 106.0, ev.BlockDone())
    assert now.pace.missed_periods == now.pace.releases_skipped == 0, "on the deadline is in time"


def test_a_late_block_is_one_miss_and_the_points_it_overran_are_skips() -> None:
    now = after(after(warm(), 100.5, act(1), act(2)), 102.0, ev.Dispatched())
    assert now.pace.late_s(104.0) == 0.0
    assert now.pace.late_s(109.0) == 5.0
    now = after(now, 109.0, ev.BlockDone())
    # Due 104, done 109: 104, 106 and 108 passed. The next action has the point after them.
    assert now.pace.missed_periods == 1
    assert (now.pace.skipped_before, now.pace.releases_skipped) == (3, 3)
    assert at(now) == 110.0
    assert [waiting.action.block_index for waiting in now.pending] == [2]
    now = after(after(now, 110.0, ev.Dispatched()), 111.0, ev.BlockDone(), act(3))
    assert (now.pace.skipped_before, now.pace.releases_skipped) == (0, 3)
    assert now.pace.missed_periods == 1, "lateness does not cascade"
    assert at(now) == 112.0


def test_releases_that_nobody_asked_for_are_no_skips() -> None:
    now = after(warm(), 103.5, act(1))
    assert (at(now), now.pace.releases_skipped) == (104.0, 0)
    after_a_pause = after(warm(), 150.25, act(1))
    assert (at(after_a_pause), after_a_pause.pace.due_at) == (150.25, 152.25)
    assert after_a_pause.pace.releases_skipped == 0


def test_an_action_taken_back_gives_its_point_back() -> None:
    once = after(warm(), 100.5, act(1))
    again = after(after(once, 100.75, ev.StreamEnded()), 101.0, act(1))
    assert at(again) == at(once) == 102.0
    # Once the point has passed it is not had again.
    late = after(after(once, 103.0, ev.StreamEnded()), 103.5, act(1))
    assert at(late) == 104.0
    # A stream that ends in the middle of a block takes nothing back.
    mid = after(after(once, 102.0, ev.Dispatched()), 102.5, ev.StreamEnded())
    assert mid.pace.release == once.pace.release


@pytest.mark.parametrize("when", ["before", "meanwhile", "later"])
def test_a_move_that_did_not_commit_costs_the_points_that_it_stood_and_no_miss(when: str) -> None:
    """Frozen from 101 to 107.5: points 102, 104 and 106 passed without a block."""
    now = after(warm(), 100.5, act(1)) if when == "before" else warm()
    now = after(now, 101.0, ev.FreezeAsked(3, "m1"))
    if when == "meanwhile":
        now = after(now, 104.5, act(1))
    now = after(now, 107.5, ev.ThawAsked(3, "m1"))
    if when == "later":
        now = after(now, 107.75, act(1))
    assert (at(now), now.pace.due_at) == (108.0, 110.0)
    assert now.pace.releases_skipped == now.pace.skipped_before == 3
    done = after(after(now, 108.0, ev.Dispatched()), 109.0, ev.BlockDone(), act(2))
    assert (done.pace.missed_periods, at(done)) == (0, 110.0)


def test_what_a_late_block_overran_before_a_freeze_is_skipped_all_the_same() -> None:
    now = after(after(warm(), 100.5, act(1)), 102.0, ev.Dispatched())
    now = after(now, 107.0, ev.BlockDone())  # 104 and 106 passed; 108 nobody asked for
    frozen = after(now, 109.0, ev.FreezeAsked(3, "m1"))
    assert frozen.pace.releases_skipped == 2
    thawed = after(after(frozen, 110.5, ev.ThawAsked(3, "m1")), 111.0, act(2))
    assert (at(thawed), thawed.pace.releases_skipped) == (112.0, 3)
    assert thawed.pace.missed_periods == 1


def test_a_short_freeze_costs_nothing() -> None:
    now = after(after(warm(), 100.5, act(1)), 101.0, ev.FreezeAsked(3, "m1"))
    now = after(now, 101.5, ev.ThawAsked(3, "m1"))
    assert (at(now), now.pace.releases_skipped) == (102.0, 0)


def test_frozen_at_a_boundary_the_next_action_is_released_by_the_thaw() -> None:
    now = after(after(warm(), 100.5, act(1), act(2)), 102.0, ev.Dispatched())
    now = after(after(now, 102.5, ev.FreezeAsked(3, "m1")), 103.0, ev.BlockDone())
    assert now.phase is Phase.FROZEN
    assert now.pace.release is None
    now = after(now, 104.5, ev.ThawAsked(3, "m1"))
    assert (at(now), now.pace.releases_skipped) == (106.0, 1)


def test_a_thaw_before_the_boundary_changes_nothing() -> None:
    mid = after(after(warm(), 100.5, act(1)), 102.0, ev.Dispatched())
    thawed = after(after(mid, 102.5, ev.FreezeAsked(3, "m1")), 102.75, ev.ThawAsked(3, "m1"))
    assert thawed.phase is Phase.GENERATING
    assert thawed.pace == mid.pace


def test_where_a_move_ends_the_grid_is_anchored_anew_and_nothing_is_charged() -> None:
    staged = replace(world(), phase=Phase.ATTACHED, move_id="m1", block_index=7)
    now = after(staged, 500.0, ev.ActivateAsked("m1", 4), act(7), act(8))
    assert (at(now), now.pace.has_deadline) == (500.0, False)
    now = after(after(now, 500.0, ev.Dispatched()), 503.5, ev.BlockDone())
    assert (now.pace.missed_periods, now.pace.releases_skipped) == (0, 0)
    assert at(now) == 503.5


def test_without_a_period_nothing_is_skipped_missed_or_released_late() -> None:
    now = world(Contract(ServiceClass.C1_INTERACTIVE, 1_000.0))
    now = after(now, 10.0, act(0), act(1), ev.Dispatched())
    now = after(now, 500.0, ev.BlockDone())
    assert (at(now), now.pace.due_at) == (10.0, 11.0)
    assert (now.pace.missed_periods, now.pace.releases_skipped) == (0, 0)
    frozen = after(now, 501.0, ev.FreezeAsked(3, "m1"))
    assert at(after(frozen, 600.0, ev.ThawAsked(3, "m1"))) == 10.0
    empty = after(after(frozen, 502.0, ev.StreamEnded()), 503.0, act(1))
    assert at(after(empty, 600.0, ev.ThawAsked(3, "m1"))) == 503.0


def test_degraded_blocks_are_counted_and_remembered() -> None:
    limited = replace(CONTRACT, degraded_consecutive_max=2)
    now = world(limited)
    for block, degraded in enumerate((True, True)):
        assert now.pace.history.may_degrade
        now = after(now, 100.0 + block, act(block), ev.Dispatched(degraded), ev.BlockDone())
    assert not now.pace.history.may_degrade
    assert now.pace.degraded_blocks == 2
    now = after(now, 110.0, act(2), ev.Dispatched(False), ev.BlockDone())
    assert now.pace.history.may_degrade


STEPS = st.lists(
    st.tuples(st.sampled_from(["act", "begin", "done", "freeze", "thaw", "end"]), st.floats(0, 7)),
    max_size=60,
)


@given(STEPS)
def test_every_release_is_a_block_a_skip_or_unasked_and_no_action_is_lost(
    steps: list[tuple[str, float]],
) -> None:
    """Whatever comes in whatever order: blocks follow actions, points are used once, in order."""
    now, clock, moves, sent = world(), 100.0, 0, 0
    used: list[float] = []
    for name, wait in steps:
        clock += wait
        if name == "act" and len(now.pending) < 3:
            sent = now.next_action_index
            now = after(now, clock, act(sent))
        elif name == "begin" and now.phase is Phase.RUNNING and now.pending:
            release = now.pace.release
            assert release is not None, "an action that waits has its release"
            if release.release_at <= clock:
                assert now.pending[0].action.block_index == now.block_index
                used.append(release.release_at)
                now = after(now, clock, ev.Dispatched())
        elif name == "done" and now.mid_block:
            before = now.pace.missed_periods
            missed = now.pace.late_s(clock) > 0
            now = after(now, clock, ev.BlockDone())
            assert now.pace.missed_periods == before + missed
        elif name == "freeze" and now.phase in (Phase.RUNNING, Phase.GENERATING):
            moves += 1
            now = after(now, clock, ev.FreezeAsked(3, f"m{moves}"))
        elif name == "thaw" and now.phase in (Phase.FROZEN, Phase.FREEZING):
            now = after(now, clock, ev.ThawAsked(3, f"m{moves}"))
        elif name == "end":
            now = after(now, clock, ev.StreamEnded())
        assert now.pace.skipped_before <= now.pace.releases_skipped
        if now.phase is Phase.RUNNING and now.pending:
            assert now.pace.release is not None
    assert used == sorted(used)
    gridded = [point for point in used if point not in (used[0],)]
    assert len(set(gridded)) == len(gridded), "no point is used twice"
    passed = max(0.0, clock - 100.0) / PERIOD_S
    assert now.pace.releases_skipped <= passed + 1


def test_a_pace_that_nothing_was_asked_of_is_due_never() -> None:
    assert Pace().due_at == math.inf
    assert Pace().late_s(1e9) == 0.0
