"""Planning: the search against brute force, and no plan above a bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fabric.cell import GBIT_PER_S, STATE_BYTES, Cell
from bench.fabric.planning.bounds import (
    bound,
    most_bytes_per_s,
    on_machines,
    receivers_bound,
    unshared_bound,
)
from bench.fabric.planning.job import Job, jobs_of
from bench.fabric.planning.search import search
from bench.fabric.planning.timetable import GAP_S, Timetable, Wire
from bench.fabric.workload import make_workload

CELL = Cell()
NODES = ("a", "b", "c")
HORIZON_S = 0.4
#: Of the cell's fast senders and its slow one.
WIRES_S = {"a": 0.18, "b": 0.18, "c": 0.25}


@st.composite
def instances(draw: st.DrawFn) -> list[Job]:
    """Four moves within a horizon, some of which have their state at one place only."""
    jobs = []
    for number in range(4):
        sources = draw(st.sets(st.sampled_from(NODES), min_size=1))
        wire_s = {source: WIRES_S[source] for source in sorted(sources)}
        ready_s = draw(st.floats(0.0, 0.3))
        jobs.append(Job(f"move-{number}", ready_s, HORIZON_S, wire_s))
    return jobs


def most_by_brute_force(jobs: Sequence[Job]) -> int:
    """Every order and every path, each wire as early as its ends are free: the most in time."""
    best = 0
    for order in itertools.permutations(jobs):
        best = max(best, most_in_order(order, {}, {}, len(order) - best))
        if best == len(jobs):
            break
    return best


def most_in_order(
    order: Sequence[Job], out_s: dict[str, float], into_s: dict[str, float], spare: int
) -> int:
    """Moves in time in this order; fewer than `spare` rejected, or whatever was found."""
    if not order or spare < 0:
        return 0
    job, later = order[0], order[1:]
    best = most_in_order(later, out_s, into_s, spare - 1)
    for source, target in itertools.permutations(NODES, 2):
        if source not in job.wire_s:
            continue
        begin_s = max(job.ready_s, out_s.get(source, 0.0), into_s.get(target, 0.0))
        if begin_s <= job.latest_s(source):
            end_s = begin_s + job.wire_s[source] + GAP_S
            ends = {**out_s, source: end_s}, {**into_s, target: end_s}
            best = max(best, 1 + most_in_order(later, *ends, spare))
    return best


def check(plan: Timetable, jobs: Sequence[Job]) -> None:
    """Wires in time, each with its sender and its receiver for itself; not from the timetable."""
    by_id = {job.move_id: job for job in jobs}
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for wire in plan:
        job = by_id[wire.job.move_id]
        end_s = wire.begin_s + job.wire_s[wire.source]
        assert wire.begin_s >= job.ready_s
        assert end_s < job.ready_s + job.horizon_s
        assert wire.source != wire.target
        spans.setdefault(("out", wire.source), []).append((wire.begin_s, end_s))
        spans.setdefault(("into", wire.target), []).append((wire.begin_s, end_s))
    for on_link in spans.values():
        ordered = sorted(on_link)
        assert all(first[1] < then[0] for first, then in itertools.pairwise(ordered))


@settings(max_examples=25, deadline=None)
@given(jobs=instances(), seed=st.integers(0, 1000))
def test_the_search_finds_what_brute_force_finds(jobs: list[Job], seed: int) -> None:
    plan = search(NODES, jobs, random.Random(seed))
    check(plan, jobs)
    assert len(plan) == most_by_brute_force(jobs)


@settings(max_examples=8, deadline=None)
@given(load=st.floats(0.5, 5.0), seed=st.integers(0, 10**6), pinned=st.booleans())
def test_no_plan_of_a_whole_run_is_above_its_bound(load: float, seed: int, pinned: bool) -> None:
    jobs = jobs_of(CELL, make_workload(CELL, load, seed, pinned=pinned))
    plan = search(CELL.nodes, jobs, random.Random(seed), rounds=10)
    check(plan, jobs)
    assert 0 < len(plan) <= unshared_bound(CELL, jobs) <= bound(CELL, jobs)


@pytest.mark.parametrize("load", [1.0, 1.4, 2.0, 4.0])
@pytest.mark.parametrize("pinned", [False, True])
def test_the_search_comes_within_one_move_of_what_unshared_senders_can(
    load: float, pinned: bool
) -> None:
    """So that the oracle is no weak one in the experiment that it is the measure of."""
    for seed in range(3):
        jobs = jobs_of(CELL, make_workload(CELL, load, seed, pinned=pinned))
        plan = search(CELL.nodes, jobs, random.Random(seed), rounds=20)
        assert unshared_bound(CELL, jobs) - 1 <= len(plan) <= unshared_bound(CELL, jobs)


@settings(max_examples=25, deadline=None)
@given(jobs=instances())
def test_without_senders_in_the_way_the_receivers_bound_is_exact(jobs: list[Job]) -> None:
    """As many nodes that only send as there are moves, all alike: only receivers are left."""
    senders = {f"sender-{number}": 0.18 for number in range(len(jobs))}
    alike = [Job(job.move_id, job.ready_s, HORIZON_S, senders) for job in jobs]
    receivers = 2
    best = 0
    for count in range(len(alike) + 1):
        if any(fits(chosen, receivers) for chosen in itertools.combinations(alike, count)):
            best = count
    assert on_machines(alike, 0.18, receivers) == best


def fits(jobs: Sequence[Job], receivers: int) -> bool:
    """Whether all of them can be in time: every order on every assignment."""
    for order in itertools.permutations(jobs):
        for places in itertools.product(range(receivers), repeat=len(order)):
            free_s = [0.0] * receivers
            for job, place in zip(order, places, strict=True):
                free_s[place] = max(job.ready_s, free_s[place]) + 0.18
                if free_s[place] > job.ready_s + HORIZON_S:
                    break
            else:
                return True
    return False


def test_more_rounds_find_no_more() -> None:
    """What the last rounds gain is nothing: three times as many find the same."""
    jobs = jobs_of(CELL, make_workload(CELL, 2.0, seed=1, pinned=True))
    plans = [search(CELL.nodes, jobs, random.Random(1), rounds=rounds) for rounds in (50, 150)]
    assert len(plans[0]) == len(plans[1])


def test_the_search_betters_what_list_scheduling_finds() -> None:
    gained = 0
    for seed in range(25):
        luck = random.Random(seed)
        jobs = []
        for number in range(9):
            sources = sorted(luck.sample(NODES, luck.randint(1, 3)))
            wire_s = {source: WIRES_S[source] for source in sources}
            jobs.append(Job(f"move-{number}", luck.uniform(0.0, 0.6), HORIZON_S, wire_s))
        lists = search(NODES, jobs, random.Random(seed), rounds=0)
        gained += len(search(NODES, jobs, random.Random(seed))) - len(lists)
    assert gained > 0


def test_a_known_plan_is_never_lost() -> None:
    job = Job("move-0", 0.0, HORIZON_S, {"a": 0.18})
    known = Timetable(NODES)
    known.add(Wire(job, "a", "b", 0.1))
    assert search(NODES, [job], random.Random(1), known=[known], rounds=0) is known


def test_the_cell_carries_three_fast_senders_and_the_slow_one_at_most() -> None:
    """Four receivers cannot all be fed at 73: one has the slow sender, or half of a fast one."""
    assert most_bytes_per_s(CELL) == pytest.approx((3 * 73 + 54) * GBIT_PER_S)
    jobs = jobs_of(CELL, make_workload(CELL, 2.0, seed=1))
    assert receivers_bound(CELL, jobs) >= bound(CELL, jobs)
    span_s = jobs[-1].ready_s + HORIZON_S - jobs[0].ready_s
    assert bound(CELL, jobs) <= span_s * most_bytes_per_s(CELL) / STATE_BYTES
