"""Path estimates: what transfers teach, and that a promise is made on the careful value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.estimate import (
    DEVIATION_GAIN,
    DEVIATIONS_CHARGED,
    FIRST_DEVIATION,
    MEAN_GAIN,
    Estimate,
)
from worldline.admissibility.path_rate import SMALL_BYTES_MAX, PathRate, TransferSample
from worldline.errors import InvalidInput

SMALL, LARGE, STATE = 1 << 20, 64 << 20, 1_670_124_960

samples = st.builds(
    TransferSample,
    wire_bytes=st.integers(1, 2**63 - 1),
    transfer_ms=st.floats(1e-6, 86_400_000),
    frozen_ms=st.just(0.0) | st.floats(0, 86_400_000),
)


def _wire(size_bytes: int, *, setup_ms: float, rate: float, frozen: float = 0.0) -> TransferSample:
    wire_ms = setup_ms + size_bytes / rate * 1e3
    return TransferSample(size_bytes, wire_ms, wire_ms + frozen if frozen else 0.0)


def test_the_gains_are_the_rfcs() -> None:
    assert (MEAN_GAIN, DEVIATION_GAIN, DEVIATIONS_CHARGED) == (0.125, 0.25, 4)


def test_one_estimate_by_hand() -> None:
    one = Estimate.first(80.0)
    assert (one.mean, one.deviation) == (80.0, 80.0 * FIRST_DEVIATION)
    two = one.updated(120.0)
    # RFC 6298, rule 2.3: RTTVAR from the old SRTT, then SRTT.
    assert two.deviation == 0.75 * 10 + 0.25 * 40
    assert two.mean == 0.875 * 80 + 0.125 * 120
    assert two.charged == two.mean + 4 * two.deviation


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_an_estimate_stays_among_its_samples(values: list[float]) -> None:
    estimate = Estimate.first(values[0])
    for value in values[1:]:
        estimate = estimate.updated(value)
    assert min(values) * (1 - 1e-9) <= estimate.mean <= max(values) * (1 + 1e-9)
    assert 0 <= estimate.deviation <= max(values) * (1 + 1e-9)
    assert estimate.charged >= estimate.mean
    assert estimate.samples == len(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_an_estimate_refuses_what_is_no_sample(bad: float) -> None:
    with pytest.raises(InvalidInput):
        Estimate.first(bad)
    with pytest.raises(InvalidInput):
        Estimate.first(1.0).updated(bad)


def test_a_probe_of_two_sizes_tells_set_up_from_rate() -> None:
    path = PathRate.first(_wire(SMALL, setup_ms=3.0, rate=5e9), 0.0)
    path = path.updated(_wire(LARGE, setup_ms=3.0, rate=5e9), 1.0)
    assert path.mean_cost.rate_bytes_per_s == pytest.approx(5e9, rel=0.03)
    assert path.mean_cost.setup_ms == pytest.approx(3.0, rel=0.1)
    assert (path.samples, path.updated_at_s) == (2, 1.0)


def test_the_order_of_the_sizes_does_not_matter_much() -> None:
    path = PathRate.first(_wire(LARGE, setup_ms=1.0, rate=1e9), 0.0)
    assert path.mean_cost.setup_ms == 0.0
    path = path.updated(_wire(SMALL, setup_ms=1.0, rate=1e9), 1.0)
    assert path.mean_cost.setup_ms == pytest.approx(1.0, rel=0.1)


def test_only_small_transfers_give_a_slow_rate_that_one_large_one_replaces() -> None:
    path = PathRate.first(_wire(SMALL, setup_ms=10.0, rate=5e9), 0.0)
    for _ in range(5):
        path = path.updated(_wire(SMALL, setup_ms=10.0, rate=5e9), 0.0)
    assert path.mean_cost.rate_bytes_per_s < 0.11e9
    path = path.updated(_wire(LARGE, setup_ms=10.0, rate=5e9), 0.0)
    assert path.mean_cost.rate_bytes_per_s > 3e9
    assert not path.pace_from_small
    path = path.updated(_wire(LARGE, setup_ms=10.0, rate=5e9), 0.0)
    assert path.pace.samples == 2  # the second large one is smoothed in, as any later one


def test_an_inflated_set_up_never_makes_the_charged_wire_faster_than_it_was() -> None:
    path = PathRate.first(TransferSample(SMALL, 500.0), 0.0)
    path = path.updated(TransferSample(LARGE, 20.0), 0.0)
    assert path.charged_cost.rate_bytes_per_s <= LARGE / 0.020


@given(samples)
def test_one_sample_never_promises_more_than_it_saw(sample: TransferSample) -> None:
    path = PathRate.first(sample, 0.0)
    predicted_ms = path.charged_cost.t_migrate_ms(sample.wire_bytes)
    seen_ms = max(sample.transfer_ms, sample.frozen_ms)
    assert predicted_ms >= seen_ms * (1 - 1e-9) or path.charged_cost.rate_bytes_per_s == 1e15


def test_committed_moves_teach_the_work_around_the_wire() -> None:
    path = PathRate.first(_wire(SMALL, setup_ms=3.0, rate=5e9), 0.0)
    path = path.updated(_wire(STATE, setup_ms=3.0, rate=5e9, frozen=40.0), 0.0)
    assert path.overhead is not None
    assert path.overhead.mean == pytest.approx(40.0)
    assert path.mean_cost.setup_ms == pytest.approx(43.0, rel=0.02)
    assert path.expected_transfer_ms(STATE) == pytest.approx(3 + STATE / 5e6, rel=0.02)


def test_a_move_that_did_not_commit_teaches_only_the_wire() -> None:
    path = PathRate.first(_wire(STATE, setup_ms=3.0, rate=5e9), 0.0)
    assert path.overhead is None


def test_steady_moves_bring_the_charged_rate_to_the_measured_one() -> None:
    path = PathRate.first(_wire(STATE, setup_ms=0.0, rate=8e9), 0.0)
    first = path.charged_cost.rate_bytes_per_s
    assert first == pytest.approx(8e9 / 1.5)
    for _ in range(30):
        path = path.updated(_wire(STATE, setup_ms=0.0, rate=8e9), 0.0)
    assert path.charged_cost.rate_bytes_per_s == pytest.approx(8e9, rel=0.001)


def test_constants_that_are_stale_recover() -> None:
    path = PathRate.first(_wire(STATE, setup_ms=0.0, rate=8e9), 0.0)
    for _ in range(20):
        path = path.updated(_wire(STATE, setup_ms=0.0, rate=8e9), 0.0)
    slower = path.updated(_wire(STATE, setup_ms=0.0, rate=8e9 / 1.3), 0.0)
    # One sample 30 % slower: what is promised next is already slower than that sample.
    assert slower.charged_cost.rate_bytes_per_s < 8e9 / 1.3
    for _ in range(40):
        slower = slower.updated(_wire(STATE, setup_ms=0.0, rate=8e9 / 1.3), 0.0)
    assert slower.charged_cost.rate_bytes_per_s == pytest.approx(8e9 / 1.3, rel=0.02)


@given(st.lists(samples, min_size=1, max_size=20))
def test_any_history_gives_costs_in_range(history: list[TransferSample]) -> None:
    path = PathRate.first(history[0], 0.0)
    for number, sample in enumerate(history[1:]):
        path = path.updated(sample, float(number))
    charged, mean = path.charged_cost, path.mean_cost
    assert charged.rate_bytes_per_s <= mean.rate_bytes_per_s
    assert charged.setup_ms >= mean.setup_ms
    assert path.deviation_bytes_per_s >= 0
    assert path.samples == len(history)
    assert path.expected_transfer_ms(1) >= 0


@pytest.mark.parametrize(
    ("size_bytes", "transfer_ms", "frozen_ms", "field"),
    [
        (0, 1.0, 0.0, "wire_bytes"),
        (-1, 1.0, 0.0, "wire_bytes"),
        (1, 0.0, 0.0, "transfer_ms"),
        (1, math.nan, 0.0, "transfer_ms"),
        (1, math.inf, 0.0, "transfer_ms"),
        (1, 1.0, -1.0, "frozen_ms"),
        (1, 1.0, math.nan, "frozen_ms"),
    ],
)
def test_what_measured_nothing_is_no_sample(
    size_bytes: int, transfer_ms: float, frozen_ms: float, field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        TransferSample(size_bytes, transfer_ms, frozen_ms)
    assert caught.value.field == field


def test_the_boundary_of_small() -> None:
    at = PathRate.first(TransferSample(SMALL_BYTES_MAX, 1.0), 0.0)
    above = PathRate.first(TransferSample(SMALL_BYTES_MAX + 1, 1.0), 0.0)
    assert at.pace_from_small
    assert not above.pace_from_small
