"""The fluid fleet bound, on the paper's figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.fleet import fluid_moves_max, horizon_bytes, moves_max_at_wall
from worldline.errors import InvalidInput

STATE_BYTES = 1_670_124_960
DIRTY_RATE_BYTES_PER_S = 0.93e9
HORIZON_MS = 400.0
GBIT_PER_S = 1e9 / 8
#: As printed; the exact C is 2.042 GB.
C_BYTES = 2.04e9


def test_the_papers_c() -> None:
    c_bytes = horizon_bytes(STATE_BYTES, DIRTY_RATE_BYTES_PER_S, HORIZON_MS)
    assert c_bytes == pytest.approx(2_042_124_960, rel=1e-12)
    assert round(c_bytes / 1e9, 2) == 2.04


def test_the_papers_fluid_bounds() -> None:
    assert round(fluid_moves_max(C_BYTES, 100 * GBIT_PER_S, HORIZON_MS), 3) == 2.451
    assert round(fluid_moves_max(C_BYTES, 400 * GBIT_PER_S, HORIZON_MS), 1) == 9.8
    assert round(C_BYTES / 0.4 / GBIT_PER_S) == 41
    assert fluid_moves_max(C_BYTES, C_BYTES / 0.4, HORIZON_MS) == pytest.approx(1.0)


def test_the_papers_measured_bound() -> None:
    # The footnote's 1.62 charges the measured wall of one move, 57 ms of set-up and 190 ms of
    # transfer, against the horizon.
    assert round(moves_max_at_wall(57 + 190, HORIZON_MS), 2) == 1.62


def test_set_up_charged_on_the_fluid_wire_admits_one() -> None:
    bound = fluid_moves_max(C_BYTES, 100 * GBIT_PER_S, HORIZON_MS, setup_ms=57)
    assert math.floor(bound) == 1
    assert math.floor(fluid_moves_max(C_BYTES, 100 * GBIT_PER_S, HORIZON_MS)) == 2


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


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_bad_values_are_named(bad: float) -> None:
    for call, field in (
        (lambda: fluid_moves_max(bad, 1.0, 1.0), "move_bytes"),
        (lambda: fluid_moves_max(1.0, bad, 1.0), "rate_bytes_per_s"),
        (lambda: fluid_moves_max(1.0, 1.0, bad), "horizon_ms"),
        (lambda: moves_max_at_wall(bad, 1.0), "wall_ms"),
        (lambda: horizon_bytes(1, 0.0, bad), "horizon_ms"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field
