"""Footprint: what processes hold, sampled over many moves, and whether it grows.

Nothing may grow with the number of moves. What an allocator or the kernel may do once at any
time (a heap that splits is a mapping more) is the slack that a test names; memory, of which
allocators keep what they like, has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

import psutil

#: What a census remembers on purpose, for a bounded time.
REMEMBERED = frozenset({"tickets_remembered", "tombstones", "slot_tokens"})
MEBIBYTE = 1 << 20

Sample = Mapping[str, int]


def of_process(pid: int) -> dict[str, int]:
    """What the kernel says of a process."""
    process = psutil.Process(pid)
    with process.oneshot():
        return {
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "resident_bytes": process.memory_info().rss,
            "mappings": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        }


def growth(samples: list[Sample], memory_slack_bytes: int, slack: Mapping[str, int]) -> list[str]:
    """Complaints about what the last third of the samples holds more of than the first third."""
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    complaints = []
    for name in sorted(set(first[0]) - REMEMBERED):
        before, after = _values(first, name), _values(last, name)
        if name.endswith("_bytes"):
            grown = median(after) - median(before)
            if grown > memory_slack_bytes:
                complaints.append(f"{name} grew by {grown / MEBIBYTE:.1f} MiB: {before} {after}")
        elif median(after) > max(before) + slack.get(name, 0):
            complaints.append(f"{name} grew: {before} {after}")
    return complaints


def _values(samples: Iterable[Sample], name: str) -> list[int]:
    return [sample[name] for sample in samples]
