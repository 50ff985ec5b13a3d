"""What this process holds: the figures that leak tests compare before and after."""

from __future__ import annotations

import asyncio

import psutil


def process_census() -> dict[str, int]:
    """Counts of asyncio tasks, threads and open descriptors, and resident bytes, now."""
    process = psutil.Process()
    with process.oneshot():
        return {
            "tasks": len(asyncio.all_tasks()),
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "resident_bytes": process.memory_info().rss,
        }
