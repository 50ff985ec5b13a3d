"""Bulk moves for tests, and a clock that carries a plan out."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from hypothesis import strategies as st

from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan
from worldline.admissibility.bulk.starts import decide_starts
from worldline.admissibility.condition import PathCost

#: A byte takes a millisecond, so sizes are durations.
BYTE_A_MS = PathCost(rate_bytes_per_s=1e3)

Pair = tuple[int, int]


def pairs(nodes_max: int = 8, moves_max: int = 40) -> st.SearchStrategy[list[Pair]]:
    """Random multigraphs; parallel moves in either direction are likely."""
    node = st.integers(0, nodes_max - 1)
    pair = st.tuples(node, node).filter(lambda ends: ends[0] != ends[1])
    return st.lists(pair, max_size=moves_max)


def build(ends: Iterable[Pair], sizes: Sequence[int] = (1,)) -> list[BulkMove]:
    """One move for each pair of node numbers; sizes repeat."""
    return [
        BulkMove(f"move-{index:05}", f"node-{source}", f"node-{target}", sizes[index % len(sizes)])
        for index, (source, target) in enumerate(ends)
    ]


def carry_out(plan: BulkPlan, duration_ms: Callable[[BulkMove], float]) -> float:
    """The makespan where moves really take that long and nothing interactive runs."""
    begun: set[str] = set()
    running: list[tuple[float, str]] = []
    now_ms = 0.0
    while True:
        running_ids = {move_id for _, move_id in running}
        for move in decide_starts(plan, begun, running_ids, ()).start:
            begun.add(move.move_id)
            heapq.heappush(running, (now_ms + duration_ms(move), move.move_id))
        if not running:
            assert len(begun) == len(plan.moves)
            return now_ms
        now_ms = running[0][0]
        while running and running[0][0] <= now_ms:
            heapq.heappop(running)
