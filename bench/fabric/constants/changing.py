"""Changing run: one run in which moves cost more, or less, from one moment on."""

from __future__ import annotations

from bench.fabric.cell import Cell
from bench.fabric.constants.policies import ProbedAdmission
from bench.fabric.constants.scenario import Scenario
from bench.fabric.flow import Flow
from bench.fabric.policies.policy import MakePolicy
from bench.fabric.run import Run


class ChangingRun(Run):
    """Moves on the wire change with those to come, unless the scenario changes one move only.

    `in_flight`: moves admitted and not over when it changed.
    """

    def __init__(self, cell: Cell, scenario: Scenario, make: MakePolicy, seed: int) -> None:
        workload = scenario.workload(cell, seed)
        super().__init__(cell, workload, make, seed)
        before, first = workload.offers[scenario.changed_at - 1 : scenario.changed_at + 1]
        self.changed_s = (before.offered_s + first.offered_s) / 2
        self.in_flight = 0
        self._scenario = scenario
        self._slowed_once = False
        if isinstance(self.policy, ProbedAdmission):
            self.policy.slower = lambda: self.fabric.slower
        if not scenario.once:
            self._events.add(self.changed_s, self._change)

    def _change(self) -> None:
        self.in_flight = len(self._asked_s)
        self.fabric.slow_down(self._scenario.slower(self.fabric.cell))

    def _start_wire(self, flow: Flow) -> None:
        if self._scenario.once and not self._slowed_once and self.fabric.now_s >= self.changed_s:
            self._slowed_once = True
            flow.cap_bytes_per_s /= self._scenario.cost
        super()._start_wire(flow)
