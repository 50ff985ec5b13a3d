from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import CapacityExhausted, Unavailable, WorldlineError, error_classes
from worldline.sdk.retry import RetryPolicy


@pytest.mark.parametrize("cls", error_classes())
def test_only_unavailable_and_exhausted_are_retried(cls: type[WorldlineError]) -> None:
    wanted = cls.status.name in ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
    assert (RetryPolicy().delay_s(cls("x"), 1, 0, 100) is not None) == wanted


def test_the_servers_wait_wins() -> None:
    error = CapacityExhausted("x", retry_after_ms=3_000)
    assert RetryPolicy().delay_s(error, 1, 0, 100) == 3.0
    assert RetryPolicy().delay_s(error, 1, 0, 3.0) is None


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_wait_never_reaches_the_deadline(attempt: int, now_s: float, deadline_s: float) -> None:
    delay_s = RetryPolicy().delay_s(Unavailable("x"), attempt, now_s, deadline_s)
    assert delay_s is None or (0 < delay_s <= 1.0 and now_s + delay_s < deadline_s)
