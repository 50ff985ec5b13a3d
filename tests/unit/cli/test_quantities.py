"""Sizes, rates and durations as people write them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.cli import quantities
from worldline.errors import InvalidInput

SIZE_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}
RATE_UNITS = {"Gb/s": 1e9 / 8, "Gbps": 1e9 / 8, "Mbit/s": 1e6 / 8, "GB/s": 1e9, "MiB/s": 2.0**20}
TIME_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("2.04GB", 2_040_000_000),
        ("1670124960B", 1_670_124_960),
        ("1.5 GiB", 1_610_612_736),
        (".5kB", 500),
        ("0.1B", 1),
    ],
)
def test_sizes(text: str, parsed: int) -> None:
    assert quantities.state_bytes(text, "--state") == parsed


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("41Gb/s", 5.125e9), ("41Gbps", 5.125e9), ("12.5GB/s", 12.5e9), ("8b/s", 1.0)],
)
def test_rates(text: str, parsed: float) -> None:
    assert quantities.rate(text, "--rate") == parsed


@pytest.mark.parametrize(("text", "parsed"), [("500ms", 500.0), ("1.5s", 1500.0), ("2min", 1.2e5)])
def test_durations(text: str, parsed: float) -> None:
    assert quantities.duration_ms(text, "--horizon") == parsed


def test_nothing_needs_no_unit() -> None:
    assert quantities.dirty_rate("0", "--dirty-rate") == 0
    assert quantities.setup_ms("0", "--setup") == 0


@given(st.integers(1, 10**6), st.sampled_from(sorted(SIZE_UNITS)), st.sampled_from(["", " "]))
def test_every_size_is_exact(number: int, unit: str, space: str) -> None:
    parsed = quantities.state_bytes(f"{number}{space}{unit}", "--state")
    assert parsed == number * SIZE_UNITS[unit]


@given(st.decimals("0.001", "1000", places=3), st.sampled_from(sorted(RATE_UNITS)))
def test_every_rate(number: object, unit: str) -> None:
    parsed = quantities.rate(f"{number}{unit}", "--rate")
    assert math.isclose(parsed, float(str(number)) * RATE_UNITS[unit], rel_tol=1e-12)


@given(st.decimals("0.001", "20", places=3), st.sampled_from(sorted(TIME_UNITS)))
def test_every_duration(number: object, unit: str) -> None:
    parsed = quantities.duration_ms(f"{number}{unit}", "--horizon")
    assert math.isclose(parsed, float(str(number)) * TIME_UNITS[unit], rel_tol=1e-12)


@given(st.floats(1, 1e14))
def test_a_rate_reads_back_as_it_is_shown(bytes_per_s: float) -> None:
    shown = quantities.human_rate(bytes_per_s)
    # Two places after the point, and whole bits below 1 kb/s.
    assert math.isclose(quantities.rate(shown, "--rate"), bytes_per_s, rel_tol=0.07)


@given(st.floats(1e-3, 8.64e7))
def test_a_duration_reads_back_as_it_is_shown(duration_ms: float) -> None:
    shown = quantities.human_ms(duration_ms)
    assert math.isclose(quantities.duration_ms(shown, "--slo"), duration_ms, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("parse", "text", "way_out"),
    [
        (quantities.state_bytes, "20", "needs a unit: write 1.67GB"),
        (quantities.state_bytes, "1.67Gb", "no unit 'Gb': write 1.67GB"),
        (quantities.state_bytes, "1.67gb", "no unit 'gb'"),
        (quantities.state_bytes, "-1GB", "such as 1.67GB"),
        (quantities.state_bytes, "0GB", "between 1 and"),
        (quantities.state_bytes, "1e400GB", "such as 1.67GB"),
        (quantities.state_bytes, "9" * 25 + "B", "such as 1.67GB"),
        (quantities.state_bytes, "9999999PB", "between 1 and"),
        (quantities.rate, "41", "needs a unit: write 41Gb/s"),
        (quantities.rate, "41GB", "no unit 'GB': write 41Gb/s"),
        (quantities.rate, "0", "greater than 0"),
        (quantities.rate, "nan", "such as 41Gb/s"),
        (quantities.rate, "", "such as 41Gb/s"),
        (quantities.rate, "\u0661Gb/s", "such as 41Gb/s"),
        (quantities.dirty_rate, "1", "or 0 for a frozen source"),
        (quantities.duration_ms, "500", "needs a unit: write 400ms"),
        (quantities.duration_ms, "0", "greater than 0"),
        (quantities.duration_ms, "25h", "at most"),
        (quantities.setup_ms, "3", "57ms, or 0"),
    ],
)
def test_what_is_none_names_the_option_and_the_way_out(
    parse: Callable[[str, str], object], text: str, way_out: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(text, "--option")
    assert caught.value.field == "--option"
    assert "--option" in caught.value.message
    assert way_out in caught.value.message


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    for parse in (quantities.state_bytes, quantities.rate, quantities.duration_ms):
        with contextlib.suppress(InvalidInput):
            assert parse(text, "--option") > 0
