"""Control plane: what counts as overhead of a move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.control_plane import overhead_row


def record(**timings_ms: float) -> Any:
    return SimpleNamespace(timings_ms=timings_ms, frozen_ms=timings_ms.get("push", 0.0) + 5.0)


def test_overhead_is_everything_but_push_and_verify() -> None:
    records = [
        record(admit=1.0, push=500.0, verify=90.0, commit=2.0),
        record(admit=2.0, push=1.0, verify=1.0, commit=3.0, thaw=1.0),
        record(admit=9.0, push=1.0, verify=1.0, commit=9.0),
    ]
    row = overhead_row(records)
    assert row.value == pytest.approx(6.0)
    assert row.repeats == 3
    assert row.ok is True
    assert "admit 2.00" in row.detail
    assert "thaw 0.00" in row.detail
    assert row.detail.endswith("freeze to thaw 6.00")
    assert overhead_row([record(reserve=15.1)]).ok is False
