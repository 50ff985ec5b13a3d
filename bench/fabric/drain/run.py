"""Drain run: bulk moves start when `decide_starts` says so, and interactive ones go first."""

from __future__ import annotations

from functools import partial

from bench.fabric.cell import Cell
from bench.fabric.flow import Flow
from bench.fabric.policies.admission import WorldlineAdmission
from bench.fabric.policies.policy import Admit, Done
from bench.fabric.run import Run
from bench.fabric.workload import Offer, Workload, draw
from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan
from worldline.admissibility.bulk.starts import decide_starts

#: Nobody looks at these worlds while they move.
BULK_HORIZON_S = 60.0


class DrainRun(Run):
    """`workload` is of the interactive moves, and may be empty.

    Where states leave some nodes for others, the first are being emptied and get no interactive
    moves. `bulk` is what became of the bulk moves; interactive ones are in `outcome`.
    """

    policy: WorldlineAdmission

    def __init__(self, cell: Cell, plan: BulkPlan, workload: Workload, seed: int) -> None:
        luck = {move.move_id: draw(cell, seed, move.move_id) for move in plan.moves}
        both = Workload(workload.offers, {**workload.draws, **luck})
        super().__init__(cell, both, WorldlineAdmission, seed)
        sources = {move.source_node_id for move in plan.moves}
        if sources.isdisjoint(move.target_node_id for move in plan.moves):
            self.policy.emptied = frozenset(sources)
        self.bulk: list[Done] = []
        self.bulk_refused = 0
        self._plan = plan
        self._planned = {move.move_id: move for move in plan.moves}
        self._begun: set[str] = set()
        self._running: set[str] = set()
        #: The ends of interactive moves that run or want to.
        self._interactive: dict[str, tuple[str, str]] = {}
        self._events.add(0.0, self._start_bulk)

    def _start_bulk(self) -> None:
        nodes = {node for ends in self._interactive.values() for node in ends}
        for move in decide_starts(self._plan, self._begun, self._running, nodes).start:
            self._ask_bulk(move)

    def _ask_bulk(self, move: BulkMove) -> None:
        now_s = self.fabric.now_s
        sources = (move.source_node_id,)
        offer = Offer(move.move_id, sources, move.state_bytes, BULK_HORIZON_S, now_s)
        answer = self.policy.decide_bulk(offer, move.target_node_id, now_s)
        if not isinstance(answer, Admit):
            self._events.add(answer.until_s, self._start_bulk)
            return
        self._offers[move.move_id] = offer
        self._begun.add(move.move_id)
        self._running.add(move.move_id)
        self._admit(offer, answer)

    def _admit(self, offer: Offer, answer: Admit) -> None:
        if offer.move_id not in self._planned:
            self._interactive[offer.move_id] = (answer.source, answer.target)
        super()._admit(offer, answer)

    def _refused(self, flow: Flow) -> None:
        if flow.flow_id not in self._planned:
            super()._refused(flow)
            del self._interactive[flow.flow_id]
        else:
            self._asked_s.pop(flow.flow_id)
            self.policy.withdrawn(self._offers[flow.flow_id], self.fabric.now_s)
            self.bulk_refused += 1
            self._running.remove(flow.flow_id)
            self._begun.remove(flow.flow_id)
        self._events.add(self.fabric.now_s, self._start_bulk)

    def _wire_ended(self, flow: Flow) -> None:
        super()._wire_ended(flow)
        if flow.flow_id in self._planned:
            self.bulk.append(self.outcome.done.pop())
            self._running.remove(flow.flow_id)
        else:
            del self._interactive[flow.flow_id]
        # After all that ends in this very moment.
        self._events.add(self.fabric.now_s, partial(self._start_bulk))
