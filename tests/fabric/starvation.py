"""Starvation: how long threads that could have run had no core.

The experiment's premise is that cores are never what a move waits for. Where other work on the
machine breaks it, the kernel says by how much: the second figure of `/proc/PID/task/TID/schedstat`
(`Documentation/scheduler/sched-stats.rst`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def starved_s(pids: Iterable[int]) -> dict[int, float]:
    """By process: seconds that its threads have waited for a core so far, together.

    0 where the kernel does not count it.
    """
    return {pid: sum(map(_thread_starved_s, _threads(pid))) for pid in pids}


def starved_since_s(before: dict[int, float]) -> float:
    """Seconds since then of the process that has waited longest.

    Ends and wire of a move work at once, so that it is late by no more than the slowest of them.
    """
    now = starved_s(before)
    return max((now[pid] - earlier for pid, earlier in before.items()), default=0.0)


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path("/proc", str(pid), "task").iterdir())
    except OSError:
        return []


def _thread_starved_s(thread: Path) -> float:
    with suppress(OSError):  # it may have ended meanwhile
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    return 0.0
