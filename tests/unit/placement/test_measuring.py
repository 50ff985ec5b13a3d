"""How large the pushes of a measurement are: never more than the time allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.placement.measuring import LARGE_COUNT, large_bytes

MIB = 1 << 20


@given(st.integers(1, 1 << 30), st.floats(0, 1e12), st.floats(-10, 60))
def test_all_large_pushes_fit(push_bytes_max: int, rate: float, left_s: float) -> None:
    size = large_bytes(push_bytes_max, rate, left_s)
    assert 0 <= size <= push_bytes_max
    assert size % MIB == 0
    assert size * LARGE_COUNT <= rate * max(0.0, left_s)
    if size:
        assert size >= min(4 * MIB, push_bytes_max)


def test_what_is_asked_for_is_pushed_where_there_is_time() -> None:
    assert large_bytes(16 * MIB, 10e9, 1.0) == 16 * MIB
    assert large_bytes(16 * MIB, 1e6, 1.0) == 0  # a small push has said what there is to say
    assert large_bytes(16 * MIB, 10e9, 0.0) == 0
