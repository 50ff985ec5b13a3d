"""Clock offsets by halves of the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.doctor.clock import (
    OFFSET_WARNING_MS,
    Exchange,
    Offset,
    best_offset,
    check_clock,
    offset_of,
)

#: Since 1970 in nanoseconds, until the year 2200; delays up to a minute; offsets up to a century.
times = st.integers(0, 7_258_118_400_000_000_000)
delays = st.integers(0, 60_000_000_000)
offsets = st.integers(-(10**18) * 3, 10**18 * 3)


@given(times, delays, delays, offsets)
def test_wrong_by_no_more_than_it_says(sent: int, there: int, back: int, offset_ns: int) -> None:
    exchange = Exchange(sent, sent + there + offset_ns, sent + there + back)
    found = offset_of(exchange)
    # A century in milliseconds has 42 bits, which leaves a double some nanoseconds.
    assert abs(found.offset_ms - offset_ns / 1e6) <= found.uncertainty_ms + 1e-3
    assert found.uncertainty_ms == pytest.approx((there + back) / 2e6)
    assert found.surely_ms <= abs(offset_ns) / 1e6 + 1e-3


@given(st.lists(st.tuples(times, delays, delays, offsets), min_size=1, max_size=6))
def test_the_quickest_exchange_is_believed(rows: list[tuple[int, int, int, int]]) -> None:
    exchanges = [Exchange(at, at + go + off, at + go + back) for at, go, back, off in rows]
    best = best_offset(exchanges)
    assert best is not None
    assert best.uncertainty_ms == min(offset_of(one).uncertainty_ms for one in exchanges)


def test_equal_halves_hit_it_and_nothing_is_nothing() -> None:
    assert offset_of(Exchange(1_000_000, 8_000_000, 3_000_000)) == Offset(6.0, 1.0)
    assert best_offset([]) is None


def test_a_clock_is_off_only_where_that_is_sure() -> None:
    assert check_clock("mover a", Offset(OFFSET_WARNING_MS + 10, 11.0)) == ()
    assert check_clock("mover a", Offset(-OFFSET_WARNING_MS, 0.0)) == ()
    (found,) = check_clock("mover a", Offset(-OFFSET_WARNING_MS - 10, 9.0))
    assert (found.code, found.subject) == ("CLOCK_OFF", "mover a")
    assert "510 ms behind" in found.what
    assert "ahead" in check_clock("mover a", Offset(1e6, 1.0))[0].what
