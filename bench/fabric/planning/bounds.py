"""Bounds: what nobody could have done better, from relaxations that are easy to trust.

All hold for plans in which wires never meet in a receiver, as in every plan without incast. Each
forgets something of the cell and lets what is left be done by equal machines, first come first
served. That is optimal there: the moves take equally long and have equal horizons, so that a plan
with k moves can always be changed, without becoming later anywhere, into the greedy one's first k.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from bench.fabric.cell import STATE_BYTES, Cell
from bench.fabric.flow import new_flow
from bench.fabric.planning.job import Job
from bench.fabric.shares import set_rates


def bound(cell: Cell, jobs: Sequence[Job]) -> int:
    """The least of the bounds."""
    return min(
        receivers_bound(cell, jobs), bytes_bound(cell, jobs), senders_bound(cell, jobs), len(jobs)
    )


def receivers_bound(cell: Cell, jobs: Iterable[Job]) -> int:
    """Forget the senders: every receiver takes a move at a time, each as fast as the fastest."""
    jobs = list(jobs)
    shortest_s = min((min(job.wire_s.values()) for job in jobs), default=0.0)
    return on_machines(jobs, shortest_s, len(cell.nodes))


def bytes_bound(cell: Cell, jobs: Iterable[Job]) -> int:
    """Forget who sends to whom: one machine with all the bytes that the cell carries at once."""
    return on_machines(list(jobs), STATE_BYTES / most_bytes_per_s(cell), 1)


def senders_bound(cell: Cell, jobs: Iterable[Job]) -> int:
    """Forget the receivers: moves from one place only share its egress, all others are free."""
    jobs = list(jobs)
    anywhere = sum(len(job.wire_s) > 1 for job in jobs)
    for node in cell.nodes:
        pinned = [job for job in jobs if list(job.wire_s) == [node]]
        anywhere += on_machines(pinned, STATE_BYTES / cell.egress(node), 1)
    return anywhere


def unshared_bound(cell: Cell, jobs: Sequence[Job]) -> int:
    """Of plans in which no sender has two wires at once: all senders of one speed together.

    Not among the others, because a plan may share a sender's egress; the oracle's do not.
    """
    speeds: dict[float, list[str]] = {}
    for node in cell.nodes:
        speeds.setdefault(cell.solo_bytes_per_s(node), []).append(node)
    count = 0
    for nodes in speeds.values():
        from_here = [job for job in jobs if not job.wire_s.keys().isdisjoint(nodes)]
        lengths_s = [job.wire_s[node] for job in from_here for node in nodes if node in job.wire_s]
        count += on_machines(from_here, min(lengths_s, default=0.0), len(nodes))
    return min(count, bound(cell, jobs))


def on_machines(jobs: Sequence[Job], length_s: float, machines: int) -> int:
    """How many moves of that length are on time on so many machines, first come first served."""
    free_s = [float("-inf")] * machines
    heapify(free_s)
    count = 0
    for job in sorted(jobs, key=lambda job: job.ready_s):
        begin_s = max(job.ready_s, free_s[0])
        if begin_s + length_s <= job.ready_s + job.horizon_s:
            heapreplace(free_s, begin_s + length_s)
            count += 1
    return count


def most_bytes_per_s(cell: Cell) -> float:
    """The most that flows into different receivers carry together, whoever sends them."""
    best = 0.0
    for sources in itertools.product(cell.nodes, repeat=len(cell.nodes)):
        flows = [
            new_flow(target, source, target, float(STATE_BYTES), cell.flow_bytes_per_s)
            for source, target in zip(sources, cell.nodes, strict=True)
            if source != target
        ]
        set_rates(flows, cell)
        best = max(best, sum(flow.rate_bytes_per_s for flow in flows))
    return best
