"""Path estimates: what transfers teach, and that a promise is made on the careful value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.path_rate import SMALL_BYTES_MAX, PathRate, TransferSample
from worldline.errors import InvalidInput

SMALL, LARGE, STATE = 1 << 20, 64 << 20, 1_670_124_960

samples = st.builds(
    TransferSample,
    wire_bytes=st.integers(1, 2**63 - 1),
    transfer_ms=st.floats(1e-6, 86_400_000),
    frozen_ms=st.just(0.0) | st.floats(0, 86_400_000),
)
#: Away from the bounds of rates and durations, where factors are cut off.
usual_samples = st.builds(
    lambda size_bytes, pace, around_ms: TransferSample(size_bytes, size_bytes * pace, around_ms),
    st.integers(1, 10**8),
    st.floats(1e-7, 1e-4),
    st.just(0.0) | st.floats(1.0, 1e4),
)


def _wire(size_bytes: int, *, setup_ms: float, rate: float, frozen: float = 0.0) -> TransferSample:
    wire_ms = setup_ms + size_bytes / rate * 1e3
    return TransferSample(size_bytes, wire_ms, wire_ms + frozen if frozen else 0.0)


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


def _moves(rate: float, count: int, *, setup_ms: float = 3.0, around_ms: float = 20.0) -> PathRate:
    """A path on which probes of both sizes and then that many moves went alike."""
    path = PathRate.first(_wire(SMALL, setup_ms=setup_ms, rate=rate), 0.0)
    path = path.updated(_wire(LARGE, setup_ms=setup_ms, rate=rate), 0.0)
    move = _wire(STATE, setup_ms=setup_ms, rate=rate, frozen=around_ms)
    for _ in range(count):
        path = path.updated(move, 0.0)
    return path


def _longer(path: PathRate, times: float, part: str) -> TransferSample:
    """The usual move, but longer by that factor as a whole, all of it in one part."""
    usual_ms = path.expected_transfer_ms(STATE)
    around_ms = 0.0 if path.overhead is None else path.overhead.mean
    more_ms = (times - 1) * (usual_ms + around_ms)
    wire_ms = usual_ms + (more_ms if part == "wire" else 0.0)
    return TransferSample(STATE, wire_ms, usual_ms + around_ms + more_ms)


def test_steady_moves_bring_the_charged_rate_to_just_below_the_measured_one() -> None:
    path = PathRate.first(_wire(STATE, setup_ms=0.0, rate=8e9), 0.0)
    first = path.charged_cost.rate_bytes_per_s
    assert first == pytest.approx(8e9 / 1.5)
    assert not path.settled
    for _ in range(7):
        path = path.updated(_wire(STATE, setup_ms=0.0, rate=8e9), 0.0)
    assert path.charged_cost.rate_bytes_per_s == pytest.approx(8e9 / 1.08)
    assert path.mean_cost.rate_bytes_per_s == pytest.approx(8e9)
    assert path.settled


@pytest.mark.parametrize(
    ("times", "part", "misses_max"),
    [
        (1.07, "wire", 0),
        (1.07, "around", 0),
        (1 / 0.93, "wire", 0),
        (1.3, "wire", 1),
        (1.3, "around", 1),
        (1 / 0.7, "wire", 1),
        (0.7, "wire", 0),
    ],
)
@pytest.mark.parametrize("known", [1, 3, 8, 30])
def test_wrong_constants_recover_without_a_burst_of_misses(
    known: int, times: float, part: str, misses_max: int
) -> None:
    """Moves one after another, each just promised what is charged, on a path that has changed."""
    path = _moves(8e9, known)
    move = _longer(path, times, part)
    misses = 0
    for number in range(20):
        misses += move.frozen_ms >= path.charged_cost.t_migrate_ms(STATE)
        path = path.updated(move, float(number))
    assert misses <= misses_max
    assert path.mean_cost.t_migrate_ms(STATE) == pytest.approx(move.frozen_ms, rel=0.02)


def test_one_slow_move_does_not_shut_the_path() -> None:
    path = _moves(8e9, 20)
    usual_ms = path.mean_cost.t_migrate_ms(STATE)
    slow = path.updated(_longer(path, 3.0, "wire"), 0.0)
    assert not slow.settled
    assert slow.charged_cost.t_migrate_ms(STATE) <= 1.52 * usual_ms
    refuted = slow.updated(_wire(LARGE, setup_ms=3.0, rate=8e9), 0.0)  # a probe is enough
    assert refuted.charged_cost.t_migrate_ms(STATE) <= 1.15 * usual_ms


def test_the_noise_of_small_transfers_is_not_charged_to_large_ones() -> None:
    path = _moves(8e9, 20)
    before = path.pace
    for number in range(40):
        path = path.updated(TransferSample(SMALL, 1.0 if number % 2 else 9.0), 0.0)
    assert path.pace == before
    assert path.wire_setup is not None
    assert path.wire_setup.spread > 2
    # Nor through probes of 64 MiB, in which that noise is more than what the pace is unsure of.
    for number in range(40):
        path = path.updated(_wire(LARGE, setup_ms=1.0 if number % 2 else 9.0, rate=8e9), 0.0)
    assert path.pace == before
    assert path.charged_cost.rate_bytes_per_s == pytest.approx(8e9 / 1.08, rel=0.01)


def test_a_congested_large_transfer_is_not_charged_to_set_up() -> None:
    path = _moves(8e9, 20)
    congested = path.updated(_longer(path, 4.0, "wire"), 0.0)
    assert congested.wire_setup == path.wire_setup
    assert congested.charged_cost.setup_ms == path.charged_cost.setup_ms


def test_a_slow_small_transfer_is_doubted_as_a_part_of_itself() -> None:
    path = _moves(8e9, 20)
    for _ in range(20):
        path = path.updated(_wire(SMALL, setup_ms=3.0, rate=8e9), 0.0)
    assert path.settled
    slow = path.updated(TransferSample(SMALL, 12.0), 0.0)
    assert not slow.settled
    assert slow.wire_setup is not None
    assert slow.wire_setup.outlier is not None
    # Half of what the whole small transfer was expected to take, not of its set-up alone.
    more_ms = slow.wire_setup.outlier.charged - slow.wire_setup.mean
    assert more_ms == pytest.approx(path.expected_transfer_ms(SMALL) / 2)


def test_an_inflated_set_up_is_corrected_by_large_transfers() -> None:
    path = PathRate.first(TransferSample(SMALL, 500.0), 0.0)  # a busy host
    for _ in range(4):
        path = path.updated(_wire(STATE, setup_ms=3.0, rate=8e9), 0.0)
    assert path.mean_cost.t_migrate_ms(STATE) == pytest.approx(3 + STATE / 8e6, rel=0.1)


def test_what_is_charged_grows_with_age_up_to_that_of_one_sample() -> None:
    path = _moves(8e9, 20)
    usual_ms = path.mean_cost.t_migrate_ms(STATE)
    charges_ms = [
        path.charged_cost_at(age_ms, 600.0).t_migrate_ms(STATE)
        for age_ms in (0.0, 300.0, 600.0, 1e300)
    ]
    expected_ms = [times * usual_ms for times in (1.08, 1.29, 1.5, 1.5)]
    assert charges_ms == pytest.approx(expected_ms, rel=0.01)
    assert path.charged_cost_at(0.0, 600.0) == path.charged_cost


@pytest.mark.parametrize(
    ("age_ms", "age_max_ms", "field"),
    [(-1.0, 1.0, "age_ms"), (math.nan, 1.0, "age_ms"), (1.0, 0.0, "age_max_ms")],
)
def test_an_age_is_a_duration(age_ms: float, age_max_ms: float, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        _moves(8e9, 1).charged_cost_at(age_ms, age_max_ms)
    assert caught.value.field == field


@given(st.lists(usual_samples, min_size=1, max_size=12), st.integers(-8, 8))
def test_slower_by_a_factor_is_charged_by_that_factor(
    history: list[TransferSample], power: int
) -> None:
    times = 2.0**power
    one, other = _taught(history, 1.0), _taught(history, times)
    for size_bytes in (1, SMALL, STATE):
        assert other.mean_cost.t_migrate_ms(size_bytes) == pytest.approx(
            one.mean_cost.t_migrate_ms(size_bytes) * times
        )
        assert other.charged_cost.t_migrate_ms(size_bytes) == pytest.approx(
            one.charged_cost.t_migrate_ms(size_bytes) * times
        )


def _taught(history: list[TransferSample], times: float) -> PathRate:
    slower = [
        TransferSample(one.wire_bytes, one.transfer_ms * times, one.frozen_ms * times)
        for one in history
    ]
    path = PathRate.first(slower[0], 0.0)
    for sample in slower[1:]:
        path = path.updated(sample, 0.0)
    return path


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


@given(
    st.floats(1e8, 2e10),
    st.floats(0.1, 5.0),
    st.lists(st.floats(0.0, 100.0), min_size=2, max_size=2),
    st.integers(5, 12),
)
def test_small_transfers_on_a_busy_host_do_not_make_a_path_look_faster(
    rate: float, setup_ms: float, delays_ms: list[float], large: int
) -> None:
    """As placement probes: three small ones, of which two are delayed, and then large ones."""

    def took(size_bytes: int, delay_ms: float = 0.0) -> TransferSample:
        return TransferSample(size_bytes, setup_ms + delay_ms + size_bytes / rate * 1e3)

    small = [took(1 << 20, delay_ms) for delay_ms in (*delays_ms, 0.0)]
    path = PathRate.first(small[0], 0.0)
    for each in (*small[1:], *(took(64 << 20) for _ in range(large))):
        path = path.updated(each, 0.0)
    for size_bytes in (64 << 20, STATE):
        truth_ms = took(size_bytes).transfer_ms
        assert path.charged_cost.t_migrate_ms(size_bytes) >= truth_ms * (1 - 1e-9)
