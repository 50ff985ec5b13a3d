"""Fluid fabric: flows, their rates, and the stalls where they overlap at a receiver.

Time moves only by `advance`, from one change of rates to the next: a flow ends, a stall begins, a
stall ends. Between changes every rate is constant, so nothing is approximated by steps.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping

from bench.fabric.cell import Cell
from bench.fabric.flow import Flow
from bench.fabric.shares import set_rates

#: Rounding of a clock in seconds against bytes: a flow with less left has ended.
_LEFT_BYTES_MIN = 1.0
_INSTANT_S = 1e-12
_HAZARD_MIN = 1e-12


class Fabric:
    """The flows of one cell. `stalls` draws when episodes begin and how long they last."""

    def __init__(self, cell: Cell, stalls: random.Random) -> None:
        self.cell = cell
        self.now_s = 0.0
        self.flows: list[Flow] = []
        self.episodes = 0
        #: By path, how many times less than their own caps flows reach: weather, known to nobody.
        self.slower: dict[tuple[str, str], float] = {}
        self._stalls = stalls
        #: By receiver: how many more episodes are to be expected until its next one comes. Drawn
        #: from the exponential of mean one and used up at `_episodes_per_s`, as a Poisson process
        #: of changing rate is.
        self._hazard_left = {node: self._draw_hazard() for node in cell.nodes}
        #: Of receivers where flows overlap.
        self._episodes_per_s: dict[str, float] = {}
        self._next_s: float | None = math.inf

    def start(self, flow: Flow) -> None:
        """Put a flow on the wire, now."""
        flow.cap_bytes_per_s /= self.slower.get((flow.source, flow.target), 1.0)
        self.flows.append(flow)
        self._changed()

    def slow_down(self, slower: Mapping[tuple[str, str], float]) -> None:
        """From now on flows reach so many times less by themselves, those on the wire too."""
        for flow in self.flows:
            path = flow.source, flow.target
            flow.cap_bytes_per_s *= self.slower.get(path, 1.0) / slower.get(path, 1.0)
        self.slower = dict(slower)
        self._changed()

    def next_s(self) -> float:
        """When rates change next by themselves; infinite where nothing moves."""
        if self._next_s is None:
            ends = (flow.left_bytes / flow.rate_bytes_per_s for flow in self.flows if flow.moving)
            resumes = (flow.resume_s - self.now_s for flow in self.flows if not flow.moving)
            onsets = (self._hazard_left[node] / rate for node, rate in self._episodes_per_s.items())
            wait_s = min((*ends, *resumes, *onsets), default=math.inf)
            self._next_s = self.now_s + max(0.0, wait_s)
        return self._next_s

    def advance(self, to_s: float) -> list[Flow]:
        """Let time pass, at most until the next change; returns the flows that ended."""
        assert self.now_s <= to_s <= self.next_s()
        due = to_s >= self.next_s()
        passed_s = to_s - self.now_s
        self.now_s = to_s
        for flow in self.flows:
            flow.left_bytes -= flow.rate_bytes_per_s * passed_s
        for node, rate in self._episodes_per_s.items():
            self._hazard_left[node] -= rate * passed_s
        return self._change() if due else []

    def _change(self) -> list[Flow]:
        ended = [flow for flow in self.flows if flow.left_bytes < _LEFT_BYTES_MIN]
        for flow in ended:
            flow.left_bytes = 0.0
        self.flows = [flow for flow in self.flows if flow.left_bytes > 0]
        for flow in self.flows:
            if not flow.moving and flow.resume_s <= self.now_s + _INSTANT_S:
                flow.resume_s = 0.0
        for node in self._episodes_per_s:
            if self._hazard_left[node] <= _HAZARD_MIN:
                self._stall(node)
        self._changed()
        return ended

    def _stall(self, receiver: str) -> None:
        """All flows that move into a receiver freeze at once, for the same time."""
        resume_s = self.now_s + self.cell.stall_s
        for flow in self.flows:
            if flow.target == receiver and flow.moving:
                flow.resume_s = resume_s
        self.episodes += 1
        self._hazard_left[receiver] = self._draw_hazard()

    def _draw_hazard(self) -> float:
        return self._stalls.expovariate(1.0)

    def _changed(self) -> None:
        set_rates(self.flows, self.cell)
        into = Counter(flow.target for flow in self.flows if flow.moving)
        rates = ((node, self.cell.stalls_per_s(flows)) for node, flows in into.items())
        self._episodes_per_s = {node: rate for node, rate in rates if rate > 0}
        self._next_s = None
