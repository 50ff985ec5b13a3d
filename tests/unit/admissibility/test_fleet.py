"""How many moves a channel carries: the fluid bound and the contention law."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from worldline.admissibility.condition import Transfer
from worldline.admissibility.fleet import (
    contended_moves_max,
    contended_wall_ms,
    fluid_moves_max,
    horizon_bytes,
    moves_max_at_wall,
)
from worldline.errors import InvalidInput

durations = st.floats(1e-3, 8e7)


@given(st.integers(1, 2**63 - 1), st.floats(0, 1e15), st.floats(1e-6, 8.64e7))
def test_c_is_the_state_and_what_goes_stale_within_the_horizon(
    state_bytes: int, dirty: float, horizon_ms: float
) -> None:
    c_bytes = horizon_bytes(state_bytes, dirty, horizon_ms)
    assert c_bytes >= float(state_bytes)
    assert horizon_bytes(state_bytes, 0.0, horizon_ms) == float(state_bytes)
    # C/H is the flux clause's S/H + D, in bytes a second.
    required = Transfer(state_bytes, horizon_ms, dirty).required_rate_bytes_per_s
    assert c_bytes / (horizon_ms / 1e3) == pytest.approx(required)


@given(st.floats(1e3, 1e12), st.floats(1e3, 1e12), st.floats(1, 1e6), st.floats(0, 1e6))
def test_the_fluid_bound_is_the_bound_at_the_wall_of_one_move(
    move_bytes: float, rate: float, horizon_ms: float, setup_ms: float
) -> None:
    wall_ms = setup_ms + move_bytes / rate * 1e3
    assume(1e-6 <= wall_ms <= 8.64e7)
    charged = fluid_moves_max(move_bytes, rate, horizon_ms, setup_ms)
    assert charged == pytest.approx(moves_max_at_wall(wall_ms, horizon_ms))
    # As printed: N <= H*B/C.
    fluid = horizon_ms / 1e3 * rate / move_bytes
    assert fluid_moves_max(move_bytes, rate, horizon_ms) == pytest.approx(fluid)


@given(st.floats(1, 1e15), st.floats(1, 1e15), st.floats(1e-3, 8e7), st.floats(0, 1e6))
def test_a_fixed_cost_never_admits_more(
    move_bytes: float, rate: float, horizon_ms: float, setup_ms: float
) -> None:
    try:
        charged = fluid_moves_max(move_bytes, rate, horizon_ms, setup_ms)
        bare = fluid_moves_max(move_bytes, rate, horizon_ms)
    except InvalidInput as error:
        # One move alone takes over a day, or no time that a clock can tell.
        field = error.field
    else:
        field = None
        assert charged <= bare
    assert field in (None, "wall_ms")


@given(durations, durations, durations)
def test_the_most_contended_moves_are_in_time_and_one_more_is_not(
    horizon_ms: float, solo_ms: float, added_ms: float
) -> None:
    moves = contended_moves_max(horizon_ms, solo_ms, added_ms)
    rounding_ms = 1e-9 * (horizon_ms + solo_ms)
    if moves:
        assert contended_wall_ms(moves, solo_ms, added_ms) < horizon_ms + rounding_ms
    assert contended_wall_ms(moves + 1, solo_ms, added_ms) >= horizon_ms - rounding_ms


def test_a_wall_of_exactly_the_horizon_is_late() -> None:
    assert contended_moves_max(400.0, 200.0, 100.0) == 2
    assert contended_moves_max(400.5, 200.0, 100.0) == 3
    assert contended_moves_max(400.0, 400.0, 100.0) == 0
    assert contended_moves_max(400.0, 900.0, 100.0) == 0


@given(st.integers(1, 10**6), durations)
def test_moves_that_only_take_turns_are_the_bound_at_their_wall(moves: int, wall: float) -> None:
    assert contended_wall_ms(moves, wall, wall) == pytest.approx(moves * wall)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_bad_values_are_named(bad: float) -> None:
    for call, field in (
        (lambda: fluid_moves_max(bad, 1.0, 1.0), "move_bytes"),
        (lambda: fluid_moves_max(1.0, bad, 1.0), "rate_bytes_per_s"),
        (lambda: fluid_moves_max(1.0, 1.0, bad), "horizon_ms"),
        (lambda: moves_max_at_wall(bad, 1.0), "wall_ms"),
        (lambda: moves_max_at_wall(1.0, bad), "horizon_ms"),
        (lambda: horizon_bytes(1, 0.0, bad), "horizon_ms"),
        (lambda: contended_wall_ms(1, bad, 1.0), "solo_ms"),
        (lambda: contended_wall_ms(1, 1.0, bad), "added_ms"),
        (lambda: contended_moves_max(bad, 1.0, 1.0), "horizon_ms"),
        (lambda: contended_moves_max(1.0, bad, 1.0), "solo_ms"),
        (lambda: contended_moves_max(1.0, 1.0, bad), "added_ms"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_values_that_may_be_0_are_named(bad: float) -> None:
    for call, field in (
        (lambda: horizon_bytes(1, bad, 1.0), "dirty_rate_bytes_per_s"),
        (lambda: fluid_moves_max(1.0, 1.0, 1.0, bad), "setup_ms"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize("bad", [0, -1, 2**63, 1.5])
def test_bad_counts_are_named(bad: int) -> None:
    for call, field in (
        (lambda: horizon_bytes(bad, 0.0, 1.0), "state_bytes"),
        (lambda: contended_wall_ms(bad, 1.0, 1.0), "moves"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field
