"""Job: one offered move as whoever knows its luck sees it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.fabric.cell import Cell
from bench.fabric.workload import Workload

#: A move must end within its horizon strictly, and the clock is a float.
_STRICTLY_S = 1e-9


@dataclass(frozen=True, slots=True)
class Job:
    """Both ends are ready at `ready_s`; by source, how long its wire takes alone."""

    move_id: str
    ready_s: float
    horizon_s: float
    wire_s: dict[str, float]

    def latest_s(self, source: str) -> float:
        """The last begin with which it is on time."""
        return self.ready_s + self.horizon_s - self.wire_s[source] - _STRICTLY_S


def jobs_of(cell: Cell, workload: Workload) -> list[Job]:
    """Every offer that could be on time from somewhere, in their order."""
    jobs: list[Job] = []
    for offer in workload.offers:
        luck = workload.draws[offer.move_id]
        wire_s = {
            source: offer.size_bytes / min(luck.cap_bytes_per_s, cell.solo_bytes_per_s(source))
            for source in offer.sources
        }
        wire_s = {source: each for source, each in wire_s.items() if each < offer.horizon_s}
        if wire_s:
            ready_s = offer.offered_s + luck.lag_s
            jobs.append(Job(offer.move_id, ready_s, offer.horizon_s, wire_s))
    return jobs
