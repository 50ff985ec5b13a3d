"""Measure: what a change cost one run: misses, wrong rejects, and how soon it was learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.fabric.cell import Cell
from bench.fabric.constants.changing import ChangingRun
from bench.fabric.constants.policies import Lesson, ProbedAdmission
from bench.fabric.constants.scenario import MOVES, Scenario
from bench.fabric.policies.policy import MakePolicy
from bench.fabric.workload import Offer
from worldline.verdict import RejectReason

#: An estimate that is this close to the truth is right. Jitter alone is about one percent.
RIGHT_WITHIN = 0.05
#: Rejects that an estimate gives, not the load.
_OF_ESTIMATES = frozenset(
    reason.name
    for reason in (
        RejectReason.HORIZON_TOO_SHORT,
        RejectReason.BANDWIDTH_TOO_LOW,
        RejectReason.PATH_UNMEASURED,
    )
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the moves offered after the change, and those in flight when it came.

    `samples_until_right`: how many samples from the change on, probes among them, the slowest took
    of the paths whose estimate is right at the end; `paths_wrong` have another at the end, which
    is no harm where it only rejects what would be late. Both count paths that were taught at all.
    `rejected_wrongly` counts moves rejected for an estimate that would have been in time.
    """

    offered: int
    admitted: int
    missed: int
    missed_on_one_path: int
    in_flight: int
    rejected_wrongly: int
    probes: int
    samples_until_right: int
    paths_wrong: int


def measure(cell: Cell, scenario: Scenario, make: MakePolicy, seed: int) -> Measured:
    """One run."""
    run = ChangingRun(cell, scenario, make, seed)
    outcome = run.play()
    since = [move for move in outcome.done if move.wire_ended_s > run.changed_s]
    missed = Counter((move.source, move.target) for move in since if not move.on_time)
    after = {offer.move_id: offer for offer in run.offers if offer.offered_s > run.changed_s}
    costs = {} if scenario.once else scenario.slower(cell)
    wrongly = sum(
        reason in _OF_ESTIMATES and _possible(cell, costs, after[move_id])
        for move_id, reason in outcome.reason_by_move.items()
        if move_id in after
    )
    policy = run.policy if isinstance(run.policy, ProbedAdmission) else None
    lessons = policy.lessons if policy else []
    samples, wrong = samples_until_right(cell, costs, lessons, run.changed_s)
    return Measured(
        offered=MOVES - scenario.changed_at,
        admitted=sum(move.offer.move_id in after for move in outcome.done),
        missed=missed.total(),
        missed_on_one_path=max(missed.values(), default=0),
        in_flight=run.in_flight,
        rejected_wrongly=wrongly,
        probes=policy.probes if policy else 0,
        samples_until_right=samples,
        paths_wrong=wrong,
    )


def _possible(cell: Cell, costs: Mapping[tuple[str, str], float], offer: Offer) -> bool:
    """Whether it would have been in time over any of its paths."""
    (source,) = offer.sources
    cost = min(costs.get((source, node), 1.0) for node in cell.nodes if node != source)
    return cost * cell.solo_s(source, offer.size_bytes) < offer.horizon_s


def samples_until_right(
    cell: Cell,
    costs: Mapping[tuple[str, str], float],
    lessons: Sequence[Lesson],
    changed_s: float,
) -> tuple[int, int]:
    """The most that a path took, and how many paths are wrong at the end."""
    by_path: dict[tuple[str, str], list[Lesson]] = {}
    for lesson in lessons:
        if lesson.at_s > changed_s:
            by_path.setdefault((lesson.source, lesson.target), []).append(lesson)
    most = wrong_paths = 0
    for path, taught in by_path.items():
        truth_s = costs.get(path, 1.0) * cell.solo_s(path[0])
        wrong = [
            number
            for number, lesson in enumerate(taught, start=1)
            if abs(lesson.move_s / truth_s - 1) > RIGHT_WITHIN
        ]
        last_wrong = max(wrong, default=0)
        if last_wrong == len(taught):
            wrong_paths += 1
        else:
            most = max(most, last_wrong + 1)
    return most, wrong_paths
