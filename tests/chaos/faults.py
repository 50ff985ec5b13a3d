"""Faults: what happens to which process when, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.journal import Journal
from worldline.cli.cluster import LocalCluster


class FaultKind(StrEnum):
    """How a process fails."""

    #: SIGKILL, and started again after a while.
    KILL = "kill"
    #: SIGTERM, and started again after a while.
    END = "end"
    #: SIGSTOP, and SIGCONT after a while.
    PAUSE = "pause"


_WEIGHTS = {FaultKind.KILL: 4, FaultKind.END: 2, FaultKind.PAUSE: 4}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: after `calm_s`, for `lasts_s`."""

    kind: FaultKind
    process: str
    calm_s: float
    lasts_s: float


def faults(seed: int, processes: Sequence[str], calm_s: float) -> Iterator[Fault]:
    """Endless; `calm_s` is the mean of the time between two."""
    drawn = random.Random(seed)
    kinds = list(_WEIGHTS)
    while True:
        (kind,) = drawn.choices(kinds, [_WEIGHTS[each] for each in kinds])
        longest_s = 12.0 if kind is FaultKind.PAUSE else 3.0
        yield Fault(
            kind,
            drawn.choice(processes),
            drawn.expovariate(1.0 / calm_s),
            # Mostly short: long ones are all alike.
            longest_s * drawn.random() ** 2,
        )


class Saboteur:
    """Carries faults out, one after the other; every process serves again when `run` returns."""

    def __init__(self, cluster: LocalCluster, journal: Journal) -> None:
        self._cluster = cluster
        self._journal = journal

    async def run(self, planned: Iterator[Fault], until_s: float) -> None:
        """Until `until_s` on the monotonic clock."""
        for fault in planned:
            if time.monotonic() + fault.calm_s >= until_s:
                return
            await asyncio.sleep(fault.calm_s)
            await self._carry_out(fault)

    async def _carry_out(self, fault: Fault) -> None:
        self._journal.fault_began(fault.process, fault.kind, fault.lasts_s)
        if fault.kind is FaultKind.PAUSE:
            self._cluster.signal(fault.process, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:
                self._cluster.signal(fault.process, signal.SIGCONT)
        else:
            if fault.kind is FaultKind.KILL:
                await self._cluster.kill(fault.process)
            elif not await self._cluster.services[fault.process].stop(timeout_s=60.0):
                self._journal.found(f"{fault.process} did not end within 60 s of SIGTERM")
            await asyncio.sleep(fault.lasts_s)
            await self._cluster.restart(fault.process)
        self._journal.fault_ended(fault.process)
