"""The codec form of condition (1), and when a codec pays."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from worldline.admissibility.bounds import DURATION_MS_MAX
from worldline.admissibility.codec import RATIO_MAX, RATIO_MIN, Codec
from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.errors import InvalidInput
from worldline.fields import BYTES_MAX

STATE_BYTES = 1_670_124_960
GBIT_PER_S = 1e9 / 8

rates = st.floats(1.0, 1e15)
near_rates = st.floats(1e6, 1e12)
ratios = st.floats(RATIO_MIN, RATIO_MAX)
codecs = st.builds(Codec, ratios, near_rates, near_rates)
sizes = st.integers(1, BYTES_MAX)
near_sizes = st.integers(1, 10**12)


def test_one_codec_by_hand() -> None:
    codec = Codec(0.25, 1_000.0, 500.0)
    assert codec.payload_bytes(10) == 3  # 2.5, and no byte is left behind
    assert codec.codec_ms(10) == pytest.approx(10 + 20)
    condition = codec.condition(Transfer(10, 400.0, 7.0), PathCost(100.0, setup_ms=5.0))
    assert condition.t_migrate_ms == pytest.approx(5 + 30 + 30)
    assert condition.transfer == Transfer(3, 400.0, 7.0)


def test_a_cpu_codec_takes_longer_than_the_horizon() -> None:
    # Paper, section 6.4: "lz4 at 19% removed, costs 489 ms to compress and decompress".
    one_pass = STATE_BYTES / (0.489 / 2)
    lz4 = Codec(1 - 0.19, one_pass, one_pass)
    assert lz4.codec_ms(STATE_BYTES) == pytest.approx(489)
    fastest = PathCost(1e15)
    assert not lz4.condition(Transfer(STATE_BYTES, 400.0), fastest).in_time


def test_a_codec_widens_the_gate_by_its_ratio() -> None:
    # The flux clause takes r*S for S: 33 Gb/s become 21.5 for a frozen source.
    free = Codec(0.644, 1e15, 1e15)
    raw = Transfer(STATE_BYTES, 400.0)
    coded = free.condition(raw, PathCost(22 * GBIT_PER_S))
    assert coded.admissible
    assert coded.transfer.required_rate_bytes_per_s == pytest.approx(
        0.644 * raw.required_rate_bytes_per_s
    )


def test_what_generation_rewrites_is_charged_whole() -> None:
    live = Transfer(STATE_BYTES, 400.0, 0.93e9)
    coded = Codec(0.5, 1e15, 1e15).condition(live, PathCost(1e9)).transfer
    required = 0.5 * live.frozen.required_rate_bytes_per_s + 0.93e9
    assert coded.required_rate_bytes_per_s == pytest.approx(required)


@given(sizes, ratios)
def test_the_payload_is_r_s_rounded_up(size: int, ratio: float) -> None:
    payload = Codec(ratio, 1.0, 1.0).payload_bytes(size)
    assert 1 <= payload <= BYTES_MAX
    exact = Fraction(ratio) * size
    # A product of floats is rounded too: by a byte where the state has terabytes.
    rounding = exact * Fraction(1, 10**15)
    assert payload == BYTES_MAX or exact - rounding <= payload < exact + 1 + rounding


def test_the_payload_of_the_largest_state_stays_a_state() -> None:
    assert Codec(RATIO_MAX, 1.0, 1.0).payload_bytes(BYTES_MAX) == BYTES_MAX
    assert Codec(RATIO_MIN, 1.0, 1.0).payload_bytes(1) == 1


def test_a_codec_that_adds_bytes_never_pays() -> None:
    codec = Codec(1.5, 1e9, 1e9)
    assert codec.pays_below_bytes_per_s == 0.0
    assert codec.saved_ms(1_000_000, 1.0) < 0


@given(near_sizes, near_rates, near_rates)
def test_a_codec_that_removes_nothing_costs_its_time(
    size: int, rate: float, pass_rate: float
) -> None:
    codec = Codec(1.0, pass_rate, pass_rate)
    raw = Condition(Transfer(size, 400.0), PathCost(rate))
    coded = codec.condition(raw.transfer, raw.path)
    assume(codec.codec_ms(size) < DURATION_MS_MAX)
    assert coded.t_migrate_ms == pytest.approx(raw.t_migrate_ms + codec.codec_ms(size))
    assert codec.saved_ms(size, rate) == pytest.approx(-codec.codec_ms(size))
    assert codec.pays_below_bytes_per_s == 0


@given(codecs, near_sizes, near_rates)
def test_what_is_saved_is_the_difference_of_both_moves(
    codec: Codec, size: int, rate: float
) -> None:
    assume(codec.codec_ms(size) < DURATION_MS_MAX)
    raw = Condition(Transfer(size, 400.0), PathCost(rate))
    coded = codec.condition(raw.transfer, raw.path)
    # Up to one byte that the payload is rounded up by, and the rounding of the larger wall.
    tolerance_ms = 1e3 / rate + 1e-9 * (raw.t_migrate_ms + coded.t_migrate_ms)
    difference_ms = raw.t_migrate_ms - coded.t_migrate_ms
    assert codec.saved_ms(size, rate) == pytest.approx(difference_ms, abs=tolerance_ms)


@given(st.builds(Codec, st.floats(RATIO_MIN, 0.99), near_rates, near_rates), near_sizes)
def test_a_codec_pays_on_slow_paths_and_not_on_fast_ones(codec: Codec, size: int) -> None:
    turn = codec.pays_below_bytes_per_s
    assert codec.saved_ms(size, turn * 1.001) < 0
    assert codec.saved_ms(size, turn / 1.001) > 0


@given(codecs, codecs, sizes, rates)
def test_a_better_codec_never_saves_less(one: Codec, other: Codec, size: int, rate: float) -> None:
    better = Codec(
        min(one.ratio, other.ratio),
        max(one.encode_rate_bytes_per_s, other.encode_rate_bytes_per_s),
        max(one.decode_rate_bytes_per_s, other.decode_rate_bytes_per_s),
    )
    wire_ms = size / rate * 1e3
    best_ms = better.saved_ms(size, rate)
    assert best_ms >= max(one.saved_ms(size, rate), other.saved_ms(size, rate)) - 1e-9 * wire_ms


@given(st.builds(Codec, ratios, rates, rates), sizes, rates)
def test_any_codec_gives_a_condition_that_holds(codec: Codec, size: int, rate: float) -> None:
    condition = codec.condition(Transfer(size, DURATION_MS_MAX, 1e15), PathCost(rate))
    assert all(math.isfinite(number) for number in condition.numbers().values())
    # Whatever is cut off at a day was late already.
    if condition.in_time:
        assert codec.codec_ms(size) < DURATION_MS_MAX


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 2.5, 1e-9])
def test_a_bad_ratio_is_named(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Codec(bad, 1.0, 1.0)
    assert caught.value.field == "ratio"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 0.5, 1e16])
def test_bad_rates_are_named(bad: float) -> None:
    for call, field in (
        (lambda: Codec(0.5, bad, 1.0), "encode_rate_bytes_per_s"),
        (lambda: Codec(0.5, 1.0, bad), "decode_rate_bytes_per_s"),
        (lambda: Codec(0.5, 1.0, 1.0).saved_ms(1, bad), "rate_bytes_per_s"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize("bad", [0, -1, 2**63, 1.5])
def test_bad_sizes_are_named(bad: int) -> None:
    codec = Codec(0.5, 1.0, 1.0)
    for call in (
        lambda: codec.payload_bytes(bad),
        lambda: codec.codec_ms(bad),
        lambda: codec.saved_ms(bad, 1.0),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == "state_bytes"
