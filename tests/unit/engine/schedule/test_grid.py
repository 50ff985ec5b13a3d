"""Grid: points without drift, one block at a time, everything that passes counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.schedule.grid import (
    PAUSE_PERIODS,
    WARM_BLOCKS_MAX,
    ReleaseGrid,
    transient_over,
)
from worldline.errors import InvalidInput

seconds = st.floats(0, 5, allow_nan=False)


def opened(at: float = 10.0, period_s: float = 0.5) -> ReleaseGrid:
    return ReleaseGrid(period_s).opened(at)


@pytest.mark.parametrize("period_s", [0.0, -1.0, math.inf, math.nan])
def test_a_grid_needs_a_period(period_s: float) -> None:
    with pytest.raises(InvalidInput) as refused:
        ReleaseGrid(period_s)
    assert refused.value.field == "period_s"


def test_a_closed_grid_releases_at_once_and_holds_nobody_to_a_deadline() -> None:
    grid = ReleaseGrid(0.5)
    assert not grid.is_open
    assert grid.next_point(0.0) is None
    grid, release = grid.release(3.0)
    assert (release.release_at, release.deadline_at) == (3.0, math.inf)
    assert not grid.is_open, "asking for a block does not open it"
    assert not grid.finished(4.0, warm=False).is_open, "nor does a block that was a transient"
    with pytest.raises(InvalidInput):
        grid.point(0)


def test_the_grid_opens_where_the_transient_ends() -> None:
    grid = ReleaseGrid(0.5).finished(14.25)
    assert grid.anchor_at == 14.25
    _, release = grid.release(13.0)
    assert (release.release_at, release.deadline_at) == (14.25, 14.75)
    assert (release.skipped, release.unclaimed) == (0, 0)


def test_a_block_in_time_is_followed_by_the_next_point() -> None:
    grid, _ = opened().release(10.0)
    grid, release = grid.finished(10.375).release(10.25)
    assert (release.release_at, release.skipped) == (10.5, 0)


def test_a_block_that_ends_on_a_point_may_be_followed_there() -> None:
    grid, _ = opened().release(10.0)
    _, release = grid.finished(10.5).release(10.0)
    assert (release.release_at, release.skipped) == (10.5, 0)


def test_points_that_a_late_block_overran_are_skipped_and_never_made_up() -> None:
    grid, _ = opened().release(10.0)
    grid, late = grid.finished(11.25).release(10.0)
    assert (late.release_at, late.deadline_at, late.skipped) == (11.5, 12.0, 2)
    grid, after = grid.finished(11.875).release(11.25)
    assert (after.release_at, after.skipped) == (12.0, 0), "the lateness is over"


def test_points_that_nobody_wanted_are_no_skips() -> None:
    grid, _ = opened().release(10.0)
    _, release = grid.finished(10.25).release(10.75)
    assert (release.release_at, release.skipped, release.unclaimed) == (11.0, 0, 1)


def test_the_action_that_ends_a_pause_is_the_new_anchor() -> None:
    grid, _ = opened().release(10.0)
    grid = grid.finished(10.25)
    waited, release = grid.release(10.25 + PAUSE_PERIODS * 0.5)
    assert not release.reanchored
    assert release.release_at == 11.5
    paused, release = grid.release(12.3)
    assert release.reanchored
    assert (release.release_at, release.unclaimed) == (12.3, 4)
    assert paused.anchor_at == 12.3
    _, following = paused.finished(12.5).release(12.4)
    assert following.release_at == 12.8
    assert waited.anchor_at == 10.0


def test_a_new_place_measures_its_first_block_again() -> None:
    grid, _ = opened().release(10.0)
    assert grid.closed() == ReleaseGrid(0.5)


def test_points_do_not_drift() -> None:
    """A tenth is no binary fraction: a sum of a million of them is off by a microsecond."""
    grid = opened(at=1e5, period_s=0.1)
    for index in (1, 10, 1_000_000, 10_000_000):
        assert grid.point(index) == 1e5 + index * 0.1
        found = grid.next_point(grid.point(index))
        assert found == grid.point(index), "a point is the first one not before itself"


@given(
    period_s=st.sampled_from([0.1, 0.4, 1 / 3, 0.6]),
    blocks=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30),
)
def test_blocks_and_what_passed_between_are_all_points(
    period_s: float, blocks: list[tuple[float, float]]
) -> None:
    """Blocks + skips + unclaimed = points; each kind is what a count by hand finds."""
    grid, now, used = opened(3.0, period_s), 3.0, -1
    for idle_s, block_s in blocks:
        free_at, asked_at, before = grid.free_at, now + idle_s, grid
        grid, release = grid.release(asked_at)
        passed = range(used + 1, used + 200)
        skips = [k for k in passed if before.point(k) < free_at]
        unwanted = [k for k in passed if free_at <= before.point(k) < asked_at]
        assert release.skipped == len(skips)
        assert release.unclaimed == len(unwanted)
        assert release.reanchored == (asked_at - free_at > PAUSE_PERIODS * period_s)
        if release.reanchored:
            assert release.release_at == asked_at
            used = 0
        else:
            used += 1 + release.skipped + release.unclaimed
            assert release.release_at == before.point(used)
            assert asked_at <= release.release_at
        assert grid.index == used
        assert release.deadline_at == pytest.approx(release.release_at + period_s)
        now = release.release_at + block_s
        grid = grid.finished(now)


@given(st.floats(0, 60), st.floats(0.01, 0.39))
def test_lateness_does_not_cascade(stall_s: float, block_s: float) -> None:
    """After any one stall, the very next block of a feasible session is in time."""
    grid, first = opened(0.0, 0.4).release(0.0)
    grid, second = grid.finished(first.release_at + stall_s).release(0.0)
    done_at = second.release_at + block_s
    assert done_at <= second.deadline_at
    _, third = grid.finished(done_at).release(0.0)
    assert third.skipped == 0


def test_a_transient_is_over_with_the_first_usual_block() -> None:
    assert not transient_over(11.5, 0.45, blocks_done=1)
    assert transient_over(0.46, 0.45, blocks_done=2)
    assert transient_over(11.5, 0.0, blocks_done=1), "nothing to hold it against"
    assert transient_over(11.5, 0.45, WARM_BLOCKS_MAX), "slow it may be, a transient it is not"
