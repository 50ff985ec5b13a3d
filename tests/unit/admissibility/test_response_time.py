"""The response-time test, against every way a few moves can ask for a channel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count, product, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.admissibility.condition import Transfer
from worldline.admissibility.fleet import contended_wall_ms
from worldline.admissibility.response_time import (
    Channel,
    RecurringMove,
    ResponseTime,
    response_times,
    schedulable,
)
from worldline.errors import InvalidInput

#: A byte a millisecond, so that a state of n bytes holds the channel for n ms.
UNIT = Channel(1_000.0)


def _move(occupied: int, horizon: int, separation: int | None = None) -> RecurringMove:
    return RecurringMove(Transfer(occupied, float(horizon)), separation)


def _simulated(
    moves: Sequence[RecurringMove], releases: Sequence[Iterable[int]], observed: int
) -> int:
    """The longest response of move `observed`, the shortest horizon first, never preempted.

    Among equal horizons the observed one is served last: the worst order.
    """
    waiting = sorted((at, index) for index, ats in enumerate(releases) for at in ats)
    now, longest = 0, 0
    while waiting:
        now = max(now, waiting[0][0])
        asked = [request for request in waiting if request[0] <= now]
        chosen = min(
            asked, key=lambda it: (moves[it[1]].transfer.horizon_ms, it[1] == observed, it[0])
        )
        waiting.remove(chosen)
        now += moves[chosen[1]].transfer.state_bytes
        if chosen[1] == observed:
            longest = max(longest, now - chosen[0])
    return longest


single_moves = st.lists(st.builds(_move, st.integers(1, 5), st.integers(1, 16)), max_size=4)


@given(single_moves)
@settings(max_examples=60, deadline=None)
def test_moves_that_are_made_once_are_late_exactly_where_some_order_makes_them(
    moves: list[RecurringMove],
) -> None:
    for observed, response in enumerate(response_times(moves, UNIT)):
        worst = max(
            _simulated(moves, [[at] for at in ats], observed)
            for ats in product(range(4), repeat=len(moves))
        )
        assert worst <= response.response_ms
        # A move that blocks has begun before: one tick of a millisecond here, any moment in truth.
        assert worst >= response.response_ms - (1 if response.blocking_ms else 0)


@st.composite
def recurring_moves(draw: st.DrawFn) -> list[RecurringMove]:
    moves = []
    for _ in range(draw(st.integers(1, 3))):
        horizon = draw(st.integers(1, 16))
        separation = draw(st.none() | st.integers(horizon, 20))
        moves.append(_move(draw(st.integers(1, 5)), horizon, separation))
    return moves


@given(recurring_moves())
@settings(max_examples=60, deadline=None)
def test_no_order_of_recurring_moves_is_worse_than_promised(moves: list[RecurringMove]) -> None:
    promised = response_times(moves, UNIT)
    for offsets in product(range(4), repeat=len(moves)):
        releases = [_asked(move, offset) for move, offset in zip(moves, offsets, strict=True)]
        for observed, response in enumerate(promised):
            if response.in_time:
                assert _simulated(moves, releases, observed) <= response.response_ms


def _asked(move: RecurringMove, offset: int) -> list[int]:
    if move.separation_ms is None:
        return [offset]
    separation = int(move.separation_ms)
    return list(takewhile(lambda at: at < 60, count(offset, separation)))


def test_three_unequal_moves_by_hand() -> None:
    moves = [_move(2, 12), _move(3, 20), _move(7, 40)]
    first, second, third = response_times(moves, UNIT)
    # The shortest horizon waits for the longest of the other two, once.
    assert first == ResponseTime(12.0, 2.0, 0.0, blocking_ms=7.0, interference_ms=0.0)
    assert first.response_ms == 9.0
    assert second == ResponseTime(20.0, 3.0, 0.0, blocking_ms=7.0, interference_ms=2.0)
    # Nothing longer can be in the way of the last, and both others go first.
    assert third == ResponseTime(40.0, 7.0, 0.0, blocking_ms=0.0, interference_ms=5.0)
    assert schedulable(moves, UNIT)
    assert not schedulable([*moves, _move(11, 60)], UNIT)


def test_a_move_that_comes_again_before_another_starts_goes_first_again() -> None:
    # Blocked for 6 ms, the second waits for the first, which came at 0 and again at 6: until 10.
    second = response_times([_move(2, 6, 6), _move(3, 20), _move(6, 30)], UNIT)[1]
    assert second.interference_ms == 4.0
    assert second.response_ms == 6 + 4 + 3
    # Where the first comes at 0, 5 and 10, the last of these comes just in time to go first too.
    second = response_times([_move(2, 5, 5), _move(3, 20), _move(6, 30)], UNIT)[1]
    assert second.interference_ms == 6.0


def test_a_session_that_moves_again_may_be_held_up_by_its_own_last_move() -> None:
    once = response_times([_move(4, 10)], UNIT)[0]
    again = response_times([_move(4, 10, 10)], UNIT)[0]
    assert (once.blocking_ms, again.blocking_ms) == (0.0, 4.0)


def test_a_response_of_exactly_the_horizon_is_in_time() -> None:
    assert schedulable([_move(4, 8), _move(4, 8)], UNIT)
    assert not schedulable([_move(4, 8), _move(5, 8)], UNIT)


def test_no_moves_are_in_time() -> None:
    assert response_times([], UNIT) == ()
    assert schedulable([], UNIT)


def test_what_generation_dirties_within_the_horizon_is_moved_too() -> None:
    # C = 100 + 50 B/s * 2 s.
    live = RecurringMove(Transfer(100, 2_000.0, 50.0))
    (response,) = response_times([live], Channel(1_000.0, held_ms=10.0, beside_ms=5.0))
    assert response.occupied_ms == pytest.approx(10 + 200)
    assert response.response_ms == pytest.approx(10 + 200 + 5)


def test_an_endless_backlog_is_given_up_on() -> None:
    # The first two leave no gap that the third could ever start in.
    moves = [_move(5, 10, 10), _move(5, 10, 10), _move(1, 1_000)]
    third = response_times(moves, UNIT)[2]
    assert not third.in_time
    assert third.response_ms < 1_100


@given(st.integers(1, 8), st.floats(1.0, 1e3), st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_equal_moves_follow_the_contention_law(
    moves: int, wire_ms: float, held_ms: float, beside_ms: float
) -> None:
    channel = Channel(1e9 / wire_ms, held_ms, beside_ms)
    fleet = [RecurringMove(Transfer(1_000_000, 8.64e7))] * moves
    added_ms = held_ms + wire_ms
    expected = contended_wall_ms(moves, beside_ms + added_ms, added_ms)
    for response in response_times(fleet, channel):
        assert response.response_ms == pytest.approx(expected)


big_moves = st.lists(
    st.builds(
        lambda size, horizon, dirty, factor: RecurringMove(
            Transfer(size, horizon, dirty), None if factor is None else horizon * factor
        ),
        st.integers(10**6, 10**11),
        st.floats(10.0, 1e5),
        st.floats(0.0, 1e10),
        st.none() | st.floats(1.0, 10.0),
    ),
    min_size=1,
    max_size=6,
)
channels = st.builds(Channel, st.floats(1e8, 1e12), st.floats(0.0, 50.0), st.floats(0.0, 50.0))


@given(big_moves, channels)
def test_a_move_more_is_never_better(moves: list[RecurringMove], channel: Channel) -> None:
    *fewer, _ = moves
    promised = zip(response_times(fewer, channel), response_times(moves, channel), strict=False)
    for before, after in promised:
        assert before.in_time or not after.in_time
        if after.in_time:
            assert after.response_ms >= before.response_ms * (1 - 1e-9)


@given(big_moves, channels, st.floats(1.0, 100.0))
def test_a_faster_channel_is_never_worse(
    moves: list[RecurringMove], channel: Channel, factor: float
) -> None:
    faster = Channel(channel.rate_bytes_per_s * factor, channel.held_ms, channel.beside_ms)
    for before, after in zip(
        response_times(moves, channel), response_times(moves, faster), strict=True
    ):
        if before.in_time:
            assert after.response_ms <= before.response_ms * (1 + 1e-9)


@given(big_moves, channels)
def test_the_order_in_which_moves_are_listed_does_not_matter(
    moves: list[RecurringMove], channel: Channel
) -> None:
    backwards = response_times(moves[::-1], channel)[::-1]
    for one, other in zip(response_times(moves, channel), backwards, strict=True):
        assert one.in_time == other.in_time
        assert one.response_ms == pytest.approx(other.response_ms)


@given(big_moves, channels)
def test_a_response_is_the_sum_of_its_parts_and_at_least_its_own_move(
    moves: list[RecurringMove], channel: Channel
) -> None:
    for move, response in zip(moves, response_times(moves, channel), strict=True):
        assert response.horizon_ms == move.transfer.horizon_ms
        assert response.occupied_ms == channel.occupied_ms(move.transfer)
        assert response.response_ms >= response.occupied_ms + channel.beside_ms
        assert math.isfinite(response.response_ms)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_bad_channel_is_named(bad: float) -> None:
    for call, field in (
        (lambda: Channel(bad), "rate_bytes_per_s"),
        (lambda: Channel(1.0, held_ms=bad), "held_ms"),
        (lambda: Channel(1.0, beside_ms=bad), "beside_ms"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 9.9, 1e9])
def test_a_bad_separation_is_named(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        RecurringMove(Transfer(1, 10.0), bad)
    assert caught.value.field == "separation_ms"
