"""Bulk moves for tests, and a clock that carries a plan out."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from hypothesis import strategies as st

from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan
from worldline.admissibility.bulk.starts import UnderWay, decide_starts
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


Duration = Callable[[BulkMove], float]


def carry_out(plan: BulkPlan, duration_ms: Duration, lag_ms: Duration = lambda _: 0.0) -> float:
    """The makespan where moves really take that long, and so long before they ask for their wire.

    Nothing interactive runs. Wires are granted as the movers' queues do, in the order of asking,
    where the source sends nothing and the target receives nothing.
    """
    clock = _Clock(plan, duration_ms, lag_ms)
    while clock.step():
        pass
    assert len(clock.begun) == len(plan.moves)
    assert not clock.under_way
    return clock.now_ms


class _Clock:
    def __init__(self, plan: BulkPlan, duration_ms: Duration, lag_ms: Duration) -> None:
        self.now_ms = 0.0
        self.begun: set[str] = set()
        self.under_way: dict[str, UnderWay] = {}
        self._plan = plan
        self._duration_ms = duration_ms
        self._lag_ms = lag_ms
        self._waiting: list[BulkMove] = []
        #: When, whether a wire is asked for (or ends, which goes first), and whose.
        self._events: list[tuple[float, bool, str]] = []
        self._moves = {move.move_id: move for move in plan.moves}

    def step(self) -> bool:
        """Ask for what may be asked for, then let time pass until something happens."""
        while True:
            starts = decide_starts(self._plan, self.begun, self.under_way.values(), ())
            for move in (*starts.start, *starts.ahead):
                self.begun.add(move.move_id)
                self.under_way[move.move_id] = UnderWay(move, wired=False)
                asks_ms = self.now_ms + self._lag_ms(move)
                heapq.heappush(self._events, (asks_ms, True, move.move_id))
            if not self._grant():
                break
        if not self._events:
            return False
        self.now_ms = self._events[0][0]
        while self._events and self._events[0][0] <= self.now_ms:
            _, asks, name = heapq.heappop(self._events)
            if asks:
                self._waiting.append(self._moves[name])
            else:
                del self.under_way[name]
        return True

    def _grant(self) -> bool:
        """Whether anything changed: a move asks for its wire, or has it."""
        waiting, self._waiting = self._waiting, []
        due = [name for at_ms, asks, name in self._events if asks and at_ms <= self.now_ms]
        self._events = [e for e in self._events if not (e[1] and e[0] <= self.now_ms)]
        heapq.heapify(self._events)
        granted = False
        for move in (*waiting, *(self._moves[name] for name in due)):
            wired = [one.move for one in self.under_way.values() if one.wired]
            sending = {one.source_node_id for one in wired}
            receiving = {one.target_node_id for one in wired}
            if move.source_node_id in sending or move.target_node_id in receiving:
                self._waiting.append(move)
                continue
            nodes = {node_id for one in wired for node_id in one.node_ids}
            assert nodes.isdisjoint(move.node_ids), "one move at a node, whichever its direction"
            self.under_way[move.move_id] = UnderWay(move, wired=True)
            ends_ms = self.now_ms + self._duration_ms(move)
            heapq.heappush(self._events, (ends_ms, False, move.move_id))
            granted = True
        return granted or bool(due)
