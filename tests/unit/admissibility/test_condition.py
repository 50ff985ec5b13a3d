"""Condition (1) as printed, on the paper's figures and on any others."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.bounds import DURATION_MS_MAX, RATE_BYTES_PER_S_MAX
from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.errors import InvalidInput

#: The Matrix-Game-2 cache of the paper, section 3.
STATE_BYTES = 1_670_124_960
DIRTY_RATE_BYTES_PER_S = 0.93e9
HORIZON_MS = 400.0
GBIT_PER_S = 1e9 / 8

FROZEN = Transfer(STATE_BYTES, HORIZON_MS)
LIVE = Transfer(STATE_BYTES, HORIZON_MS, DIRTY_RATE_BYTES_PER_S)

rates = st.floats(1.0, RATE_BYTES_PER_S_MAX)
dirty_rates = st.just(0.0) | st.floats(0.0, RATE_BYTES_PER_S_MAX)
horizons = st.floats(1e-6, DURATION_MS_MAX)
setups = st.just(0.0) | st.floats(0.0, DURATION_MS_MAX)
sizes = st.integers(1, 2**63 - 1)


def test_between_the_papers_gates_only_a_frozen_source_moves() -> None:
    live = Condition(LIVE, PathCost(37 * GBIT_PER_S))
    assert live.frozen.admissible
    assert live.frozen == Condition(FROZEN, live.path)
    assert live.in_time
    assert not live.outruns_dirtying
    assert not live.admissible


def test_the_first_clause_is_strict() -> None:
    # 400 bytes at 1,000 B/s take exactly the horizon: not in time, although B >= S/H.
    condition = Condition(Transfer(400, 400.0), PathCost(1_000.0))
    assert condition.t_migrate_ms == condition.transfer.horizon_ms
    assert not condition.in_time
    assert condition.outruns_dirtying
    assert not condition.admissible


def test_the_second_clause_is_not_strict() -> None:
    # S/H + D = 1,000 + 1,000 B/s.
    transfer = Transfer(400, 400.0, 1_000.0)
    assert Condition(transfer, PathCost(2_000.0)).admissible
    assert not Condition(transfer, PathCost(math.nextafter(2_000.0, 0.0))).outruns_dirtying


def test_set_up_counts_against_time_and_not_against_flux() -> None:
    condition = Condition(FROZEN, PathCost(100 * GBIT_PER_S, setup_ms=300.0))
    assert not condition.in_time
    assert condition.outruns_dirtying


@pytest.mark.parametrize("rate", [0.5e9, DIRTY_RATE_BYTES_PER_S])
def test_no_horizon_is_long_enough_for_a_path_that_dirtying_outruns(rate: float) -> None:
    path = PathCost(rate)
    assert path.l_star_ms(LIVE) is None
    longest = Transfer(STATE_BYTES, DURATION_MS_MAX, DIRTY_RATE_BYTES_PER_S)
    condition = Condition(longest, path)
    assert not condition.outruns_dirtying
    assert "l_star_ms" not in condition.numbers()


@given(sizes, horizons, dirty_rates, rates, setups)
def test_both_clauses_agree_with_exact_arithmetic(
    state_bytes: int, horizon_ms: float, dirty: float, rate: float, setup_ms: float
) -> None:
    condition = Condition(Transfer(state_bytes, horizon_ms, dirty), PathCost(rate, setup_ms))
    exact_b, exact_h, exact_d = Fraction(rate), Fraction(horizon_ms), Fraction(dirty)
    exact_t = Fraction(setup_ms) + state_bytes / exact_b * 1000
    exact_required = state_bytes / (exact_h / 1000) + exact_d
    # A float may be off by its rounding, and only there may the verdicts differ.
    if abs(exact_t - exact_h) > exact_h * Fraction(1, 10**9):
        assert condition.in_time == (exact_t < exact_h)
    if abs(exact_b - exact_required) > exact_b * Fraction(1, 10**9):
        assert condition.outruns_dirtying == (exact_b >= exact_required)


@given(
    state_bytes=st.integers(1_000_000, 10**12),
    net=st.floats(1e6, 1e12),
    dirty_share=st.floats(0.0, 100.0),
)
def test_l_star_is_the_least_horizon_of_the_second_clause(
    state_bytes: int, net: float, dirty_share: float
) -> None:
    dirty = net * dirty_share
    path = PathCost(net + dirty)
    l_star_ms = path.l_star_ms(Transfer(state_bytes, HORIZON_MS, dirty))
    assert l_star_ms is not None
    above = Condition(Transfer(state_bytes, min(l_star_ms * 1.001, DURATION_MS_MAX), dirty), path)
    below = Condition(Transfer(state_bytes, min(l_star_ms / 1.001, DURATION_MS_MAX), dirty), path)
    assert above.outruns_dirtying or l_star_ms > DURATION_MS_MAX
    assert not below.outruns_dirtying


@given(rates, dirty_rates)
def test_there_is_an_l_star_exactly_where_the_path_outruns_dirtying(
    rate: float, dirty: float
) -> None:
    l_star_ms = PathCost(rate).l_star_ms(Transfer(1, HORIZON_MS, dirty))
    assert (l_star_ms is None) == (rate <= dirty)


@given(sizes, horizons, dirty_rates, rates, setups)
def test_numbers_are_finite_whatever_the_input(
    state_bytes: int, horizon_ms: float, dirty: float, rate: float, setup_ms: float
) -> None:
    condition = Condition(Transfer(state_bytes, horizon_ms, dirty), PathCost(rate, setup_ms))
    assert all(math.isfinite(number) for number in condition.numbers().values())


@given(sizes, sizes, horizons, rates, rates, setups)
def test_less_to_move_over_more_is_never_worse(
    one: int, other: int, horizon_ms: float, slow: float, fast: float, setup_ms: float
) -> None:
    small, large = sorted((one, other))
    slow, fast = sorted((slow, fast))
    if Condition(Transfer(large, horizon_ms), PathCost(slow, setup_ms)).admissible:
        assert Condition(Transfer(small, horizon_ms), PathCost(fast, setup_ms)).admissible


BAD = [math.nan, math.inf, -math.inf, -1.0, 1e300]


@pytest.mark.parametrize("bad", [*BAD, 0.0])
def test_names_a_bad_horizon(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Transfer(1, bad)
    assert caught.value.field == "horizon_ms"


@pytest.mark.parametrize("bad", BAD)
def test_names_a_bad_dirty_rate(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Transfer(1, 1.0, bad)
    assert caught.value.field == "dirty_rate_bytes_per_s"


@pytest.mark.parametrize("bad", [0, -1, 2**63, 1.5, True])
def test_names_a_bad_size(bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        Transfer(bad, 1.0)
    assert caught.value.field == "state_bytes"
    with pytest.raises(InvalidInput):
        PathCost(1.0).t_migrate_ms(bad)


@pytest.mark.parametrize("bad", [*BAD, 0.0, 0.5])
def test_names_a_bad_rate(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        PathCost(bad)
    assert caught.value.field == "rate_bytes_per_s"


@pytest.mark.parametrize("bad", BAD)
def test_names_a_bad_set_up(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        PathCost(1.0, bad)
    assert caught.value.field == "setup_ms"
