"""Load: whose processor time is whose."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import psutil
import pytest

from bench.load import Load

SPIN = "end = 5_000_000\nfor _ in range(end): pass"


def test_what_our_children_used_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of one core that has done nothing but what this test says."""
    busy, clock = {"s": 100.0}, {"s": 50.0}

    class Times(tuple[float, ...]):
        idle = iowait = guest = guest_nice = 0.0

    monkeypatch.setattr(psutil, "cpu_times", lambda: Times((busy["s"],)))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 1)
    monkeypatch.setattr(time, "monotonic", lambda: clock["s"])
    load = Load()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert own_s > 0.1
    clock["s"] += 10.0
    busy["s"] += own_s
    assert load.others() == pytest.approx(0.0, abs=0.05)
    busy["s"] += 5.0
    assert load.others() == pytest.approx(0.5, abs=0.05)


def test_a_share_stays_a_share() -> None:
    load = Load()
    assert 0.0 <= load.others() <= 1.0
