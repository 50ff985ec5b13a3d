"""Search: a plan with as many moves on time as can be found, from full knowledge.

Every wire has its sender and its receiver for itself, so that a plan is exact and stalls are
impossible, and may begin anywhere between its move's being ready and its being late. Plans come
from list scheduling under several preferences, and are bettered by ruin and recreate (Schrimpf et
al., "Record breaking optimization results using the ruin and recreate principle", J. Comput.
Phys. 2000): a stretch of time is emptied and filled again in another order. A heuristic; what it
can miss is bounded by `bounds.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.fabric.planning.job import Job
from bench.fabric.planning.timetable import Timetable, Wire

#: Ruins tried; the last of them hardly ever gain anything (see the unit test).
ROUNDS = 150
#: Half the stretch of time that a ruin empties.
_RUIN_S = (0.1, 0.4)
#: What an hour of idling or of a slow sender is worth beside an hour later; drawn anew each time.
_WEIGHTS = (0.0, 0.25, 0.5, 1.0)
#: How far moves leave the order of their being ready; drawn anew each time.
_DISORDER_S = (0.0, 0.02, 0.1, 0.3)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which of a move's wires: the earliest, but for what idles before it and how long it takes."""

    idle: float
    length: float

    def cost_s(self, wire: Wire, idle_s: float) -> float:
        """The least is preferred."""
        return wire.begin_s + self.idle * idle_s + self.length * wire.job.wire_s[wire.source]


def search(
    nodes: Sequence[str],
    jobs: Sequence[Job],
    luck: random.Random,
    *,
    known: Iterable[Timetable] = (),
    enough: int | None = None,
    rounds: int = ROUNDS,
) -> Timetable:
    """The best plan found; never one with fewer moves than a `known` one.

    Where `enough` moves are on time, nobody can do better, and the search ends.
    """
    best = max((*known, *_lists(nodes, jobs)), key=len)
    most = len(jobs) if enough is None else enough
    for _ in range(rounds):
        if len(best) >= most:
            break
        other = best.copy()
        _recreate(other, _ruin(other, jobs, luck), luck)
        if len(other) >= len(best):
            best = other
    return best


def _lists(nodes: Sequence[str], jobs: Sequence[Job]) -> list[Timetable]:
    """In the order of being ready, under every preference."""
    plans = []
    for idle in _WEIGHTS:
        for length in _WEIGHTS:
            plan = Timetable(nodes)
            for job in sorted(jobs, key=lambda job: (job.ready_s, job.move_id)):
                _place(plan, job, Preference(idle, length))
            plans.append(plan)
    return plans


def _ruin(plan: Timetable, jobs: Sequence[Job], luck: random.Random) -> list[Job]:
    """Empty a stretch; the moves that could be in it."""
    middle_s, half_s = luck.choice(jobs).ready_s + 0.2, luck.uniform(*_RUIN_S)
    left_s, right_s = middle_s - half_s, middle_s + half_s
    for wire in [wire for wire in plan if left_s <= wire.begin_s <= right_s]:
        plan.remove(wire.job.move_id)
    return [
        job
        for job in jobs
        if job.move_id not in plan
        and job.ready_s <= right_s
        and job.ready_s + job.horizon_s >= left_s
    ]


def _recreate(plan: Timetable, jobs: Sequence[Job], luck: random.Random) -> None:
    preference = Preference(luck.choice(_WEIGHTS), luck.choice(_WEIGHTS))
    disorder_s = luck.choice(_DISORDER_S)
    order = {job.move_id: job.ready_s + luck.uniform(0.0, disorder_s) for job in jobs}
    for job in sorted(jobs, key=lambda job: (order[job.move_id], job.move_id)):
        _place(plan, job, preference)


def _place(plan: Timetable, job: Job, preference: Preference) -> None:
    best = min(
        plan.paths(job),
        key=lambda path: (preference.cost_s(*path), path[0].source, path[0].target),
        default=None,
    )
    if best is not None:
        plan.add(best[0])
