"""Recorder: how fine a run's granules are."""

from __future__ import annotations

import pytest

from worldline.recording.recorder import run_granule_bytes
from worldline.state.digest import GRANULE_BYTES


@pytest.mark.parametrize(
    ("extent_bytes", "granule_bytes"),
    [(0, 4096), (4 << 20, 4096), ((4 << 20) + 1, 8192), (1 << 40, GRANULE_BYTES)],
)
def test_a_run_has_granules_that_a_line_can_hold(extent_bytes: int, granule_bytes: int) -> None:
    assert run_granule_bytes(extent_bytes) == granule_bytes
