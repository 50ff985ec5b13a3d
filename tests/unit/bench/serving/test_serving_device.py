"""The simulated device: the same seed, the same times; stalls and first touch where they belong."""

from __future__ import annotations

import math
import statistics
from itertools import islice, pairwise

import pytest

from bench.serving.device import A800_S, BULK_RATIO, Device, Stall, Timing, drawn_stalls

STEADY = Timing(jitter=0.0, first_touch_s=(0.0, 0.0), stalls_per_s=0.0)


def test_a_seed_is_a_device() -> None:
    def ends(seed: int, number: int) -> list[float]:
        device, now, found = Device(Timing(), seed, number), 0.0, []
        for _ in range(2_000):
            now = device.ends_at(now, device.interactive_s)
            found.append(now)
        return found

    assert ends(1, 0) == ends(1, 0)
    assert ends(1, 0) != ends(2, 0)
    assert ends(1, 0) != ends(1, 1)


def test_speed_and_stalls_do_not_depend_on_what_is_run() -> None:
    """One runs quanta back to back, the other rests between them: both meet the same stalls."""
    timing = Timing(jitter=0.0, first_touch_s=(0.0, 0.0), stalls_per_s=0.5, stall_s=(0.2, 0.2))
    busy, resting = Device(timing, 3, 0), Device(timing, 3, 0)
    assert busy.interactive_s == resting.interactive_s
    now = 0.0
    while now < 100.0:
        now = busy.ends_at(now, 0.01)
    stalled_until = busy.ends_at(now, 50.0)
    assert resting.ends_at(now, 50.0) == stalled_until


def test_first_touch_is_paid_once() -> None:
    device = Device(Timing(jitter=0.0, first_touch_s=(11.0, 11.0), stalls_per_s=0.0), 0, 0)
    assert device.ends_at(0.0, 0.1) == pytest.approx(11.1)
    assert device.ends_at(11.1, 0.1) == pytest.approx(11.2)


def test_a_stall_holds_up_what_it_meets() -> None:
    device = Device(STEADY, 0, 0, [Stall(5.0, 6.0), Stall(8.0, 9.0), Stall(10.0, 11.0)])
    assert device.ends_at(4.0, 0.5) == 4.5, "over before it"
    assert device.ends_at(4.9, 0.5) == pytest.approx(6.4), "all of it"
    assert device.ends_at(8.75, 0.5) == pytest.approx(9.5), "begun while it idled: the rest of it"
    assert device.ends_at(12.0, 0.5) == pytest.approx(12.5), "over long ago"


def test_stalls_are_drawn_apart_and_none_where_there_are_none() -> None:
    drawn = list(islice(drawn_stalls(Timing(), 1, 0), 50))
    assert all(stall.at < stall.until for stall in drawn)
    assert all(before.until < after.at for before, after in pairwise(drawn))
    assert list(drawn_stalls(STEADY, 1, 0)) == []


def test_runs_differ_by_more_than_quanta_do() -> None:
    timing = Timing(first_touch_s=(0.0, 0.0), stalls_per_s=0.0)
    runs = [Device(timing, seed, 0).interactive_s for seed in range(400)]
    device = Device(timing, 0, 0)
    quanta = [device.ends_at(0.0, A800_S) for _ in range(4_000)]
    ratio = statistics.variance(runs) / statistics.variance(quanta)
    assert ratio == pytest.approx(2.3, rel=0.25)
    assert device.bulk_s == device.interactive_s * BULK_RATIO
    assert not math.isclose(runs[0], runs[1])
