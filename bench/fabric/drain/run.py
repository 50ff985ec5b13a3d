"""Drain run: placement's own drain decides what to ask for, and interactive moves go first."""

from __future__ import annotations

import math

from bench.fabric.cell import HORIZON_S, Cell
from bench.fabric.drain.demand import Residents
from bench.fabric.flow import Flow
from bench.fabric.policies.admission import SLOTS_FREE, WorldlineAdmission
from bench.fabric.policies.policy import Admit, Done, Terms
from bench.fabric.run import WIRE_TOO_LATE, Run
from bench.fabric.workload import Offer, Workload, draw
from services.placement.drain import Drain
from services.placement.drain_values import (
    BULK_WAIT_MS,
    Ask,
    Committed,
    Conclude,
    DrainState,
    Event,
    Failed,
    Looked,
    Ordered,
    Rejected,
    Sent,
    View,
    Why,
    Wired,
    Withdraw,
)
from worldline.admissibility.bulk.plan import BulkPlan

#: Beyond any run: what is measured is how long it takes.
DEADLINE_S = 3_600.0


class DrainRun(Run):
    """`workload` is of the interactive moves, and may be empty.

    The nodes of `residents` are drained together by `services.placement.drain`. Where they leave
    some nodes for others, the first get no interactive moves. `bulk` is what became of the bulk
    moves; interactive ones are in `outcome`.
    """

    policy: WorldlineAdmission

    def __init__(self, cell: Cell, residents: Residents, workload: Workload, seed: int) -> None:
        luck = {one.session_id: draw(cell, seed, one.session_id) for one in residents}
        both = Workload(workload.offers, {**workload.draws, **luck})
        super().__init__(cell, both, WorldlineAdmission, seed)
        self.drain = Drain()
        self.bulk: list[Done] = []
        self.bulk_refused = 0
        self.bulk_withdrawn = 0
        self.concluded: dict[str, DrainState] = {}
        #: What is planned before the first move.
        self.plan: BulkPlan = self.drain.plan
        self._cell = cell
        self._residents = {one.session_id: one for one in residents}
        self._bulk = frozenset(self._residents)
        self._flows: dict[str, tuple[Flow, Terms]] = {}
        #: The ends of interactive moves that run or want to.
        self._interactive: dict[str, tuple[str, str]] = {}
        self._wake_s = math.inf
        sources = {one.node_id for one in residents}
        seats = {seat.node_id for one in residents for seat in one.seats}
        self._slots_free = dict.fromkeys(seats, SLOTS_FREE)
        if sources.isdisjoint(seats):
            self.policy.emptied = frozenset(sources)
        for node_id in sorted(sources):
            self._tell(Ordered(node_id, DEADLINE_S))
        self._look()
        self.plan = self.drain.plan

    @property
    def planned_s(self) -> float:
        """Rounds x T_solo on the slowest path, as planned before the first move."""
        sources = {move.source_node_id for move in self.plan.moves}
        slowest = min((self._cell.solo_bytes_per_s(node) for node in sources), default=math.inf)
        return sum(max(move.state_bytes for move in one) / slowest for one in self.plan.rounds)

    # --- the drain -----------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        self._act(self.drain.take(event, self.fabric.now_s).actions)

    def _look(self) -> None:
        interactive = frozenset(node for ends in self._interactive.values() for node in ends)
        view = View(tuple(self._residents.values()), self._slots_free, interactive)
        self._tell(Looked(view))
        wake_s = self.drain.wake_s(self.fabric.now_s)
        if self.drain.node_ids and wake_s < self._wake_s:
            self._wake_s = wake_s
            self._events.add(wake_s, self._woken)

    def _woken(self) -> None:
        self._wake_s = math.inf
        self._look()

    def _look_soon(self) -> None:
        # After all that ends in this very moment.
        self._events.add(self.fabric.now_s, self._look)

    def _act(self, actions: tuple[object, ...]) -> None:
        for action in actions:
            if isinstance(action, Ask):
                self._ask_bulk(action)
            elif isinstance(action, Withdraw):
                self._withdraw(action)
            elif isinstance(action, Conclude):
                self.concluded[action.node_id] = action.state

    def _ask_bulk(self, ask: Ask) -> None:
        now_s, resident = self.fabric.now_s, self._residents[ask.session_id]
        offer = Offer(ask.session_id, (ask.source_node_id,), resident.state_bytes, HORIZON_S, now_s)
        answer = self.policy.decide_bulk(offer, ask.target_node_id, now_s)
        if not isinstance(answer, Admit):
            wait_ms = (answer.until_s - now_s) * 1e3
            self._tell(Rejected(ask.session_id, Why("REJECTED", "by admission", wait_ms)))
            return
        self._offers[ask.session_id] = offer
        self._admit(offer, answer)

    def _withdraw(self, action: Withdraw) -> None:
        flow, _ = self._flows.pop(action.session_id)
        self._granting.end(flow, self.fabric.now_s)
        self._give_back(flow)
        self.bulk_withdrawn += 1
        self._tell(Failed(action.session_id, action.why))
        self._look_soon()

    def _give_back(self, flow: Flow) -> None:
        self._asked_s.pop(flow.flow_id)
        self.policy.withdrawn(self._offers[flow.flow_id], self.fabric.now_s)

    # --- what happens --------------------------------------------------------------------------

    def _admit(self, offer: Offer, answer: Admit) -> None:
        if offer.move_id not in self._bulk:
            self._interactive[offer.move_id] = (answer.source, answer.target)
            self._look_soon()
        super()._admit(offer, answer)

    def _scheduled(self, flow: Flow, terms: Terms) -> None:
        if flow.flow_id in self._bulk:
            self._flows[flow.flow_id] = (flow, terms)

    def _ask_wire(self, flow: Flow, terms: Terms) -> None:
        if flow.flow_id not in self._bulk:
            super()._ask_wire(flow, terms)
        elif self._flows.get(flow.flow_id, (None,))[0] is flow:  # else withdrawn meanwhile
            now_s = self.fabric.now_s
            self._granting.ask(flow, terms, now_s + terms.move_s + BULK_WAIT_MS / 1e3, now_s)

    def _refused(self, flow: Flow) -> None:
        if flow.flow_id not in self._bulk:
            super()._refused(flow)
            del self._interactive[flow.flow_id]
        else:
            _, terms = self._flows.pop(flow.flow_id)
            self._give_back(flow)
            self.bulk_refused += 1
            # As the movers tell it: after the wire that it gave way to.
            why = Why(WIRE_TOO_LATE, "by the movers", terms.wire_s * 1e3)
            self._tell(Rejected(flow.flow_id, why))
        self._look_soon()

    def _start_wire(self, flow: Flow) -> None:
        super()._start_wire(flow)
        if flow.flow_id in self._bulk:
            self._tell(Wired(flow.flow_id))
            self._look_soon()

    def _wire_ended(self, flow: Flow) -> None:
        super()._wire_ended(flow)
        if flow.flow_id in self._bulk:
            self.bulk.append(self.outcome.done.pop())
            del self._flows[flow.flow_id]
            del self._residents[flow.flow_id]
            self._tell(Sent(flow.flow_id))
            self._tell(Committed(flow.flow_id))
        else:
            del self._interactive[flow.flow_id]
        self._look_soon()
