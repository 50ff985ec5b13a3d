"""Run: one policy, one workload, one fabric, from the first offer until nothing moves."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.fabric.cell import Cell
from bench.fabric.flow import Flow
from bench.fabric.fluid import Fabric
from bench.fabric.granting import Granting
from bench.fabric.policies.policy import Admit, Done, MakePolicy, Reject, Terms
from bench.fabric.streams import stream
from bench.fabric.transfer import flow_of
from bench.fabric.workload import Offer, Workload
from worldline.verdict import RejectReason

#: The reason of a reject by the movers' queues.
WIRE_TOO_LATE = RejectReason.WIRE_TOO_LATE.name


@dataclass(slots=True)
class Outcome:
    """What became of every offer of one run."""

    done: list[Done] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    rejected_later: Counter[str] = field(default_factory=Counter)
    #: Of every rejected move, at once or later.
    reason_by_move: dict[str, str] = field(default_factory=dict)
    episodes: int = 0


class Events:
    """What happens next; equal times in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def add(self, at_s: float, act: Callable[[], None]) -> None:
        """Do that then."""
        heapq.heappush(self._heap, (at_s, next(self._numbers), act))

    def next_s(self) -> float:
        """When; infinite where nothing is left."""
        return self._heap[0][0] if self._heap else float("inf")

    def pop(self) -> Callable[[], None]:
        """The next one, taken out."""
        return heapq.heappop(self._heap)[2]


class Run:
    """The event loop: offers, wires and ends of verification around the fluid fabric."""

    def __init__(self, cell: Cell, workload: Workload, make: MakePolicy, seed: int) -> None:
        self.fabric = Fabric(cell, stream(seed, "stalls"))
        self.outcome = Outcome()
        self._workload = workload
        self.policy = make(cell, workload, seed)
        self._events = Events()
        self._granting = Granting(cell.nodes)
        #: When each flow asked for its wire, and when that began.
        self._asked_s: dict[str, float] = {}
        self._begun_s: dict[str, float] = {}
        self.offers = workload.offers
        self._offers = {offer.move_id: offer for offer in workload.offers}
        for offer in workload.offers:
            self._events.add(offer.offered_s, partial(self._offer, offer))

    def play(self) -> Outcome:
        """Until nothing is left to happen."""
        while True:
            at_s = min(self._events.next_s(), self.fabric.next_s(), self._granting.next_s())
            if at_s == float("inf"):
                break
            # Flows that end now go first: what they free is free for who asks now.
            for flow in self.fabric.advance(at_s):
                self._wire_ended(flow)
            while self._events.next_s() <= at_s < self.fabric.next_s():
                self._events.pop()()
            self._grant()
        self.outcome.episodes = self.fabric.episodes
        return self.outcome

    def _offer(self, offer: Offer) -> None:
        now_s = self.fabric.now_s
        answer = self.policy.decide(offer, now_s)
        if isinstance(answer, Admit):
            self._admit(offer, answer)
        elif isinstance(answer, Reject):
            counts = self.outcome.rejected_later if answer.later else self.outcome.rejected
            counts[answer.reason] += 1
            self.outcome.reason_by_move[offer.move_id] = answer.reason
        else:
            assert answer.until_s > now_s
            self._events.add(answer.until_s, partial(self._offer, offer))

    def _admit(self, offer: Offer, answer: Admit) -> None:
        assert answer.source in offer.sources
        assert answer.target != answer.source
        luck = self._workload.draws[offer.move_id]
        flow = flow_of(offer, answer.source, answer.target, luck)
        ready_s = self.fabric.now_s + luck.lag_s
        self._asked_s[flow.flow_id] = ready_s
        if answer.terms is not None:
            self._scheduled(flow, answer.terms)
            self._events.add(ready_s, partial(self._ask_wire, flow, answer.terms))
            return
        wire_at_s = ready_s if answer.wire_at_s is None else answer.wire_at_s
        assert wire_at_s >= ready_s, "no wire before both ends are ready"
        self._events.add(wire_at_s, partial(self._start_wire, flow))

    def _scheduled(self, flow: Flow, terms: Terms) -> None:
        """A move that was admitted gets ready, and will ask for its wire."""

    def _ask_wire(self, flow: Flow, terms: Terms) -> None:
        now_s = self.fabric.now_s
        deadline_s = now_s + self._offers[flow.flow_id].horizon_s
        self._granting.ask(flow, terms, deadline_s, now_s)

    def _grant(self) -> None:
        decided = self._granting.decide(self.fabric.now_s)
        for flow in decided.started:
            self._start_wire(flow)
        for flow in decided.refused:
            self._refused(flow)

    def _refused(self, flow: Flow) -> None:
        self._asked_s.pop(flow.flow_id)
        self.outcome.rejected_later[WIRE_TOO_LATE] += 1
        self.outcome.reason_by_move[flow.flow_id] = WIRE_TOO_LATE
        self.policy.withdrawn(self._offers[flow.flow_id], self.fabric.now_s)

    def _start_wire(self, flow: Flow) -> None:
        self._begun_s[flow.flow_id] = self.fabric.now_s
        self.fabric.start(flow)

    def _wire_ended(self, flow: Flow) -> None:
        now_s = self.fabric.now_s
        self._granting.end(flow, now_s)
        done = Done(
            offer=self._offers[flow.flow_id],
            source=flow.source,
            target=flow.target,
            asked_s=self._asked_s.pop(flow.flow_id),
            wire_begun_s=self._begun_s.pop(flow.flow_id),
            wire_ended_s=now_s,
        )
        self.outcome.done.append(done)
        self.policy.done(done, now_s)
