"""Part: how long one part of the work took each time, on the wall and of the processor.

On a machine that others use too the wall also counts when they had the core.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Moment(NamedTuple):
    """A reading of both clocks, in nanoseconds."""

    wall_ns: int
    cpu_ns: int


def moment() -> Moment:
    """Now; the processor's is this thread's."""
    return Moment(time.perf_counter_ns(), time.thread_time_ns())


@dataclass(slots=True)
class Part:
    """In nanoseconds, one of each for every time."""

    wall: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)

    def since(self, begun: Moment) -> Moment:
        """It took from then until now; returns now."""
        now = moment()
        self.add(now.wall_ns - begun.wall_ns, now.cpu_ns - begun.cpu_ns)
        return now

    def add(self, wall_ns: int, cpu_ns: int) -> None:
        """It took so long."""
        self.wall.append(wall_ns)
        self.cpu.append(cpu_ns)

    def __len__(self) -> int:
        return len(self.wall)


def together(*parts: Part) -> Part:
    """Parts that follow each other, time by time."""
    return Part(
        [sum(each) for each in zip(*(one.wall for one in parts), strict=True)],
        [sum(each) for each in zip(*(one.cpu for one in parts), strict=True)],
    )
