"""How long an engine's event loop stands still while a slot in host memory is unmapped.

    python bench/unmapping.py
    python bench/unmapping.py --bytes 1670124960 --rounds 15 --json unmapping.json

In turns: nothing is unmapped; the slot is, on the loop; by a thread, whole; by a thread, in parts,
as engines do it. LOOP is the longest time between two turns of a loop that wants one every
millisecond, MEMORY the longest that another thread waited for a mebibyte of the kernel, as quanta
do that allocate. Each is the median over the rounds, the worst in brackets; milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from services.engine.hostslot import HostSlot
from services.engine.unmapping import Unmapping

#: The state of `mg2`.
STATE_BYTES = 1_670_124_960
TURN_S = 0.001
MEMORY_BYTES = 1 << 20
#: How long nothing is unmapped: about what the others take.
NOTHING_S = 0.1

Way = Callable[[HostSlot], Awaitable[None]]


class Whole(HostSlot):
    """Unmapped in one piece."""

    def _give_pages_back(self) -> None:
        """They go with the mapping."""


async def nothing(held: HostSlot) -> None:
    await asyncio.sleep(NOTHING_S)


async def on_the_loop(held: HostSlot) -> None:
    held.close()


async def by_a_thread(held: HostSlot) -> None:
    await Unmapping(held).wait()


WAYS: dict[str, tuple[Way, type[HostSlot]]] = {
    "nothing": (nothing, Whole),
    "on the loop, whole": (on_the_loop, Whole),
    "by a thread, whole": (by_a_thread, Whole),
    "by a thread, in parts": (by_a_thread, HostSlot),
}


class Takers:
    """A loop that wants a turn every millisecond, and a thread that wants memory."""

    def __init__(self) -> None:
        self.loop_ms = 0.0
        self.memory_ms = 0.0
        self._stopped = threading.Event()

    async def turn(self) -> None:
        """Until cancelled."""
        while True:
            begun_s = time.perf_counter()
            await asyncio.sleep(TURN_S)
            self.loop_ms = max(self.loop_ms, (time.perf_counter() - begun_s - TURN_S) * 1e3)

    def take(self) -> None:
        """In a thread, until stopped."""
        while not self._stopped.wait(TURN_S):
            begun_s = time.perf_counter()
            mmap.mmap(-1, MEMORY_BYTES).close()
            self.memory_ms = max(self.memory_ms, (time.perf_counter() - begun_s) * 1e3)

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped.set()


async def measure(way: str, descriptor: int, size_bytes: int) -> tuple[float, float, float]:
    """Longest waits of the loop and for memory, and what the unmapping took; milliseconds."""
    act, kind = WAYS[way]
    held = kind(descriptor, size_bytes)
    held.buffer()[:: mmap.PAGESIZE] = 1  # all its pages, as a world leaves it
    takers = Takers()
    taking = threading.Thread(target=takers.take, name="takes-memory")
    taking.start()
    turning = asyncio.create_task(takers.turn())
    await asyncio.sleep(5 * TURN_S)
    begun_s = time.perf_counter()
    await act(held)
    took_ms = (time.perf_counter() - begun_s) * 1e3
    await asyncio.sleep(5 * TURN_S)
    turning.cancel()
    await asyncio.gather(turning, return_exceptions=True)
    takers.stop()
    await asyncio.to_thread(taking.join)
    held.close()
    return takers.loop_ms, takers.memory_ms, took_ms


async def run(size_bytes: int, rounds: int) -> dict[str, list[tuple[float, float, float]]]:
    """All ways, once a round, in another order each."""
    descriptor = os.memfd_create("worldline-bench")
    os.ftruncate(descriptor, size_bytes)
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    names = list(WAYS)
    for number in range(rounds):
        for way in names[number % len(names) :] + names[: number % len(names)]:
            found[way].append(await measure(way, descriptor, size_bytes))
    os.close(descriptor)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, default=STATE_BYTES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    found = asyncio.run(run(options.bytes, options.rounds))
    load_after = os.getloadavg()[0]
    print(
        f"{options.bytes} bytes, {options.rounds} rounds, {os.cpu_count()} cores, load "
        f"{load_before:.1f} before and {load_after:.1f} after"
    )
    print(f"{'WAY':24}{'LOOP':>16}{'MEMORY':>16}{'TOOK':>16}")
    for way, rows in found.items():
        columns = [
            f"{statistics.median(each):.1f} ({max(each):.1f})" for each in zip(*rows, strict=True)
        ]
        print(f"{way:24}" + "".join(f"{column:>16}" for column in columns))
    if options.json:
        report = {
            "bytes": options.bytes,
            "cores": os.cpu_count(),
            "load": [load_before, load_after],
            "rows": found,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
