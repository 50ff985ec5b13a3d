"""Estimates: what one sample may do, how changes are followed, and how age is charged."""

from __future__ import annotations

import math
from functools import reduce

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from worldline.admissibility.estimate import (
    DEVIATION_FLOOR,
    DEVIATION_GAIN,
    DEVIATIONS_CHARGED,
    FIRST_DEVIATION,
    MEAN_GAIN,
    SAMPLE_MAX,
    SAMPLES_SETTLED,
    Estimate,
)
from worldline.errors import InvalidInput

values = st.floats(1e-6, 1e9)
#: Samples that differ as transfers of one path do, and by more.
histories = st.lists(st.floats(1.0, 10.0), min_size=1, max_size=30)
any_sample = st.floats(0.0, SAMPLE_MAX)
#: In durations: 7 % and 30 % longer, and what rates 7 % and 30 % lower make of them.
SEVEN_PERCENT, THIRTY_PERCENT = (1.07, 1 / 0.93), (1.3, 1 / 0.7)


def _after(samples: list[float]) -> Estimate:
    return reduce(Estimate.updated, samples[1:], Estimate.first(samples[0]))


def _charges(samples: list[float]) -> list[float]:
    """What is charged after each of them, following twenty of 100 ms."""
    return [
        round(_after([100.0] * 20 + samples[:count]).charged, 1)
        for count in range(len(samples) + 1)
    ]


def test_the_gains_are_the_rfcs() -> None:
    assert (MEAN_GAIN, DEVIATION_GAIN, DEVIATIONS_CHARGED) == (0.125, 0.25, 4)
    assert SAMPLES_SETTLED == 8


def test_the_slow_start_by_hand() -> None:
    one = Estimate.first(80.0)
    assert (one.mean, one.deviation) == (80.0, 10.0)
    two = one.updated(100.0)
    assert two.mean == (80 + 100) / 2
    # RFC 6298, rule 2.3: RTTVAR from the old SRTT, then SRTT; here with a gain of 1/2.
    assert two.deviation == (10 + 20) / 2
    three = two.updated(120.0)
    assert three.mean == pytest.approx((80 + 100 + 120) / 3)
    assert three.deviation == pytest.approx(15 * 2 / 3 + 30 / 3)
    assert three.charged == pytest.approx(100 + 4 * 20)


def test_after_the_slow_start_the_gains_are_constant() -> None:
    known = Estimate(mean=100.0, deviation=10.0, samples=8, learned=8)
    after = known.updated(108.0)
    assert after.mean == 0.875 * 100 + 0.125 * 108
    assert after.deviation == 0.75 * 10 + 0.25 * 8


@pytest.mark.parametrize(
    ("what", "samples", "charged"),
    [
        ("7 % longer", [107.0] * 4, [108.0, 108.9, 113.1, 116.3, 118.0]),
        ("7 % slower", [100 / 0.93] * 4, [108.0, 109.0, 114.1, 117.5, 119.4]),
        ("30 % longer", [130.0] * 4, [108.0, 140.4, 162.5, 151.7, 146.2]),
        ("30 % slower", [100 / 0.7] * 4, [108.0, 151.5, 178.6, 166.7, 160.7]),
        ("30 % shorter", [70.0] * 4, [108.0, 106.9, 87.5, 81.7, 78.8]),
        ("one at 3x", [300.0] + [100.0] * 3, [108.0, 151.5, 108.9, 108.8, 108.7]),
        ("ever slower", [300.0, 500.0], [108.0, 151.5, 450.0]),
        ("an episode", [500.0, 300.0] + [100.0] * 2, [108.0, 151.5, 375.0, 350.0, 125.0]),
    ],
)
def test_what_is_charged_move_by_move(
    what: str, samples: list[float], charged: list[float]
) -> None:
    assert _charges(samples) == pytest.approx(charged, abs=0.06), what


@given(histories, any_sample, st.floats(0, 1))
def test_the_charge_is_never_below_the_mean(
    history: list[float], last: float, staleness: float
) -> None:
    for estimate in (_after(history), _after(history).updated(last), _after([last])):
        assert estimate.mean <= estimate.charged <= estimate.charged_at(staleness)
        assert math.isfinite(estimate.charged_at(1.0))


@given(st.lists(any_sample, min_size=1, max_size=30))
def test_an_estimate_stays_among_its_samples(samples: list[float]) -> None:
    estimate = _after(samples)
    assert min(samples) * (1 - 1e-9) <= estimate.mean <= max(samples) * (1 + 1e-9)
    assert 0 <= estimate.deviation <= max(samples) * (1 + 1e-9)
    assert estimate.samples == len(samples)
    assert 1 <= estimate.learned <= estimate.samples


@given(histories, st.floats(10.0, SAMPLE_MAX))
def test_one_outlier_is_bounded_whatever_its_size(history: list[float], last: float) -> None:
    """The margin over the mean at most triples, after four samples doubles; or half the mean."""
    before = _after(history)
    after = before.updated(last)
    assume(after.learned > before.learned)  # else it was the second of a change
    usual = DEVIATIONS_CHARGED * before.spread
    times = 3.0 if before.learned < 4 else 2.0
    assert after.charged <= max(before.mean + times * usual, 1.5 * after.mean) * (1 + 1e-9)
    assert after.mean <= before.mean + usual / min(before.learned + 1, 8) * (1 + 1e-9)


@given(values, st.integers(4, 40), st.floats(1.11, 1e6))
def test_one_slow_move_is_forgotten_with_the_next_usual_one(
    value: float, count: int, times: float
) -> None:
    settled = _after([value] * count)
    refuted = settled.updated(value * times).updated(value)
    assert refuted.outlier is None
    assert refuted.charged <= value * 1.22


@given(histories)
def test_a_fast_outlier_never_raises_the_charge(history: list[float]) -> None:
    before = _after(history)
    fast = before.mean - 4.001 * before.spread
    # From 0 up, or nothing is fast enough; and the second of a change begins anew.
    assume(fast >= 0 and before.outlier is None)
    assert before.updated(fast).charged <= before.charged * (1 + 1e-9)


@given(values, st.integers(1, 60))
def test_equal_samples_settle_at_the_floor(value: float, count: int) -> None:
    estimate = _after([value] * count)
    assert estimate.mean == pytest.approx(value)
    # 1/n of the first while the gain is 1/n, which is until it is the RFC's quarter.
    left = FIRST_DEVIATION / min(count, 4) * 0.75 ** max(0, count - 4)
    share = DEVIATIONS_CHARGED * max(left, DEVIATION_FLOOR)
    assert estimate.charged == pytest.approx(value * (1 + share))
    assert estimate.settled == (count >= SAMPLES_SETTLED)


@given(values, st.integers(1, 40), st.sampled_from(SEVEN_PERCENT))
def test_seven_percent_is_never_missed(value: float, count: int, times: float) -> None:
    estimate, truth = _after([value] * count), value * times
    for _ in range(11):
        assert estimate.charged > truth
        estimate = estimate.updated(truth)
    # Within what is charged a change is smoothed in, at the RFC's pace: ten or eleven samples.
    assert estimate.mean == pytest.approx(truth, rel=0.02)


@given(values, st.integers(1, 40), st.sampled_from(THIRTY_PERCENT))
def test_thirty_percent_is_missed_at_most_once(value: float, count: int, times: float) -> None:
    estimate, truth = _after([value] * count).updated(value * times), value * times
    for _ in range(20):
        assert estimate.charged > truth
        estimate = estimate.updated(truth)
    assert estimate.mean == pytest.approx(truth, rel=0.02)


@given(values, st.integers(4, 40), st.floats(1.3, 1e6) | st.floats(0.01, 0.8))
def test_a_change_is_believed_with_the_second_sample(
    value: float, count: int, times: float
) -> None:
    truth = value * times
    changed = _after([value] * count + [truth, truth])
    assert changed.mean == pytest.approx(truth, rel=1e-6)
    assert changed.charged == pytest.approx(truth * 1.25)
    assert changed.learned == 2
    assert not changed.settled


def test_an_outlier_on_the_other_side_confirms_nothing() -> None:
    estimate = _after([100.0] * 20 + [300.0, 30.0])
    assert estimate.mean == pytest.approx(100.0, rel=0.02)
    assert estimate.outlier is not None
    assert not estimate.settled


def test_an_outlier_of_a_small_part_is_charged_up_to_half_of_the_whole() -> None:
    part = _after([5.0] * 20)
    alone, within = part.updated(60.0), part.updated(60.0, part_of=190.0)
    assert alone.charged == pytest.approx(5 * 1.5, rel=0.02)
    assert within.charged == pytest.approx(64.8)
    assert part.updated(1e4, part_of=190.0).charged == pytest.approx(5 + 95, rel=0.01)
    assert within.updated(5.0).charged == pytest.approx(5.5, rel=0.02)


def test_after_nothing_but_zeros_the_next_sample_is_as_the_first() -> None:
    estimate = _after([0.0, 0.0, 40.0])
    assert (estimate.mean, estimate.charged) == (40.0, 60.0)
    assert (estimate.samples, estimate.learned) == (3, 1)


@given(histories, st.floats(0.0, 30.0), st.floats(0.0, 30.0))
def test_the_mean_is_monotone_in_the_last_sample(
    history: list[float], one: float, other: float
) -> None:
    known, low, high = _after(history), min(one, other), max(one, other)
    assert known.updated(low).mean <= known.updated(high).mean * (1 + 1e-12)


@given(histories, st.integers(-200, 200))
def test_the_unit_of_the_samples_does_not_matter(history: list[float], power: int) -> None:
    unit = 2.0**power
    one, other = _after(history), _after([sample * unit for sample in history])
    assert other.mean == one.mean * unit
    assert other.deviation == one.deviation * unit
    assert other.charged == one.charged * unit
    assert (other.learned, other.settled) == (one.learned, one.settled)


@given(histories, st.floats(0, 1), st.floats(0, 1))
def test_the_charge_grows_with_age(history: list[float], one: float, other: float) -> None:
    known = _after(history)
    assert known.charged_at(min(one, other)) <= known.charged_at(max(one, other))
    assert known.charged_at(0.0) == known.charged


def test_the_oldest_is_charged_as_a_single_sample() -> None:
    known = _after([100.0] * 20)
    assert known.charged_at(0.5) == pytest.approx(129.0)
    assert known.charged_at(1.0) == pytest.approx(Estimate.first(100.0).charged)
    wide = Estimate(mean=100.0, deviation=30.0, samples=9, learned=9)
    assert wide.charged_at(1.0) == wide.charged  # age never narrows what was measured


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 2 * SAMPLE_MAX])
def test_an_estimate_refuses_what_is_no_sample(bad: float) -> None:
    with pytest.raises(InvalidInput):
        Estimate.first(bad)
    with pytest.raises(InvalidInput):
        Estimate.first(1.0).updated(bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_staleness_is_a_share(bad: float) -> None:
    with pytest.raises(InvalidInput):
        Estimate.first(1.0).charged_at(bad)


@pytest.mark.parametrize(
    ("mean", "deviation", "samples", "learned"),
    [(-1.0, 0.0, 1, 1), (1.0, -1.0, 1, 1), (1.0, 0.0, 0, 1), (1.0, 0.0, 1, 0), (1.0, 0.0, 1, 2)],
)
def test_what_no_samples_lead_to_is_no_estimate(
    mean: float, deviation: float, samples: int, learned: int
) -> None:
    with pytest.raises(InvalidInput):
        Estimate(mean, deviation, samples, learned)
