"""Oracle: plans all moves before the first, with full knowledge of every draw."""

from __future__ import annotations

from collections.abc import Sequence

from bench.fabric.cell import Cell
from bench.fabric.planning.bounds import bound, unshared_bound
from bench.fabric.planning.job import Job, jobs_of
from bench.fabric.planning.search import search
from bench.fabric.planning.timetable import Timetable
from bench.fabric.policies.policy import Admit, Answer, Done, Policy, Reject
from bench.fabric.streams import stream
from bench.fabric.workload import Offer, Workload


class Oracle(Policy):
    """Knows every offer, and of each its exact lag and rate, before time begins.

    It may let a move wait as anybody may. Where it is told what another controller made of the same
    run (`known`), it does no worse. `bound` is what it could not have exceeded.
    """

    def __init__(
        self, cell: Cell, workload: Workload, seed: int, known: Sequence[Done] = ()
    ) -> None:
        jobs = jobs_of(cell, workload)
        self.bound = bound(cell, jobs)
        #: What a search like its own cannot exceed: an oracle that reaches it is the best of them.
        self.unshared_bound = unshared_bound(cell, jobs)
        luck = stream(seed, "oracle")
        timetables = [_timetable(cell, jobs, known)] if known else []
        plan = search(cell.nodes, jobs, luck, known=timetables, enough=self.unshared_bound)
        self._plan = {wire.job.move_id: wire for wire in plan}

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """As planned."""
        del now_s
        wire = self._plan.get(offer.move_id)
        if wire is None:
            return Reject("NOT_PLANNED")
        return Admit(wire.source, wire.target, wire_at_s=wire.begin_s)


def _timetable(cell: Cell, jobs: Sequence[Job], known: Sequence[Done]) -> Timetable:
    """What was on time there, wire by wire as early as it goes: none is later than it was."""
    by_id = {job.move_id: job for job in jobs}
    timetable = Timetable(cell.nodes)
    for done in sorted(known, key=lambda done: done.wire_begun_s):
        if done.on_time:
            ends = (done.source, done.target)
            paths = timetable.paths(by_id[done.offer.move_id])
            wires = (wire for wire, _ in paths if (wire.source, wire.target) == ends)
            wire = next(wires, None)
            if wire is not None:
                timetable.add(wire)
    return timetable
