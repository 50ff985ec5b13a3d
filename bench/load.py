"""Load: how much of the processors others used while the bench ran."""

from __future__ import annotations

import resource
import time

import psutil


class Load:
    """From its making on. Children of ours count as ours once they have ended."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def others(self) -> float:
        """The share of all processors' time that others used, between 0 and 1."""
        elapsed_s = (time.monotonic() - self._since_s) * (psutil.cpu_count() or 1)
        others_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return min(1.0, max(0.0, others_s / elapsed_s))


def _busy_s() -> float:
    """Processor seconds since boot that were not idle, time taken by other machines included."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_s() -> float:
    """Of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
