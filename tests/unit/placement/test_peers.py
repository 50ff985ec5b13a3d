"""Deadlines: what no longer can succeed is not waited for."""

from __future__ import annotations

import pytest

from services.placement.peers import Deadlines
from worldline.errors import InvalidInput


def test_a_push_is_waited_for_as_long_as_its_wire_is_leased() -> None:
    deadlines = Deadlines(push_s=100.0, quick_s=5.0)
    assert deadlines.of_push(10_000) == 15.0
    assert deadlines.of_push(600_000) == 100.0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_is_a_finite_time(value: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Deadlines(arm_s=value)
    assert caught.value.field == "arm_s"
