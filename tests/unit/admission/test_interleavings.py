"""Admission and the movers' wires together, with messages that take their time and nodes that die.

Whatever the order of requests, offers, grants, ends, silence, deaths and restarts: no receiver and
no sender has more than one wire, no pair is used both ways, no wire begins too late to be in time,
and once everything is over nothing is held anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.admission.core import Admission
from services.admission.policy import Policy
from services.admission.requests import MoveRequest, MoveTarget, RunningMove
from services.mover.wireask import Granted, WireAsk, WireDirection
from services.mover.wires import Wires
from worldline.contract import ServiceClass
from worldline.ticket import TicketClaims

from .builders import move, probe, report, sample

NODES = "abc"
PAIRS = list(permutations(NODES, 2))
RATE_BYTES_PER_S = 1e9
CLASSES = [ServiceClass.C1_INTERACTIVE, ServiceClass.C3_BULK]


class Stage(Enum):
    """How far a move has got, as nobody but this test knows."""

    PREPARING = "preparing"
    AT_SOURCE = "at source"
    OFFERED = "offered"
    AT_TARGET = "at target"
    ON_WIRE = "on wire"
    ENDED = "ended"


@dataclass
class Running:
    """A move with a ticket."""

    request: MoveRequest
    claims: TicketClaims
    stage: Stage = Stage.PREPARING
    #: On the source's clock; infinite where the move has none.
    deadline_s: float = math.inf
    #: Whether the source has heard of the target's grant: only then does anything begin.
    confirmed: bool = False


@dataclass(frozen=True)
class Message:
    """Something on its way to a node, or to admission where `to` is empty."""

    what: str
    to: str
    move_id: str


class Fleet(RuleBasedStateMachine):
    """Three nodes, admission, and the messages between them."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(
            valid_for_ms=1_000, lease_min_ms=1_000, lease_max_ms=4_000, patience_max_ms=2_000
        )
        self.admission = Admission(self.policy)
        self.wires = {node: Wires(node) for node in NODES}
        self.moves: dict[str, Running] = {}
        self.messages: list[Message] = []
        #: Moves whose end admission will never hear of.
        self.untold: set[str] = set()
        self.now_s = 0.0
        self.asked = 0

    @initialize()
    def measure(self) -> None:
        for pair in PAIRS:
            for _ in range(20):
                self.admission.paths.teach(pair, sample(RATE_BYTES_PER_S), 0.0, 1e9)

    # --- what the parties do -----------------------------------------------------------------

    @rule(
        pair=st.sampled_from(PAIRS),
        size_bytes=st.integers(1, 300 << 20),
        horizon_ms=st.floats(50.0, 2_000.0),
        service_class=st.sampled_from([*CLASSES, None]),
    )
    def ask_admission(
        self,
        pair: tuple[str, str],
        size_bytes: int,
        horizon_ms: float,
        service_class: ServiceClass | None,
    ) -> None:
        self._ask_admission(pair, size_bytes, horizon_ms, service_class)

    @rule(pairs=st.permutations(PAIRS), size_bytes=st.integers(50 << 20, 150 << 20))
    def all_pairs_at_once(self, pairs: list[tuple[str, str]], size_bytes: int) -> None:
        """Six moves over three nodes, both ways of every pair, all ready."""
        for pair in pairs:
            self._ask_admission(pair, size_bytes, 2_000.0, ServiceClass.C1_INTERACTIVE)
        for running in self._at(Stage.PREPARING):
            self._both_ends_are_ready(running)

    def _ask_admission(
        self,
        pair: tuple[str, str],
        size_bytes: int,
        horizon_ms: float,
        service_class: ServiceClass | None,
    ) -> None:
        self.asked += 1
        source, target = pair
        if service_class is None:
            request = probe(self.asked, source, target, extent_bytes=size_bytes)
        else:
            request = move(
                self.asked,
                source,
                target,
                extent_bytes=size_bytes,
                horizon_ms=horizon_ms,
                service_class=service_class,
            )
        request = replace(request, targets=(MoveTarget(target, slots_free=9),))
        answer = self.admission.admit_move(request, f"t{self.asked}", self.now_s)
        if answer.claims is not None:
            self.moves[request.move_id] = Running(request, answer.claims)

    @precondition(lambda self: self._at(Stage.PREPARING))
    @rule(data=st.data())
    def both_ends_are_ready(self, data: st.DataObject) -> None:
        self._both_ends_are_ready(self._draw(data, Stage.PREPARING))

    def _both_ends_are_ready(self, running: Running) -> None:
        claims = running.claims
        if self.now_s >= (claims.issued_at_ms + claims.valid_for_ms) / 1e3:
            self._end(running)  # the ticket has run out: the mover refuses
            return
        if claims.horizon_ms > 0:
            running.deadline_s = self.now_s + claims.horizon_ms / 1e3
        running.stage = Stage.AT_SOURCE
        self._ask(running, WireDirection.OUT_OF, claims.source_node_id, claims.target_node_id)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self._receive(self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1))))

    @precondition(lambda self: self.messages)
    @rule()
    def deliver_what_is_on_its_way(self) -> None:
        on_their_way, self.messages = self.messages, []
        for message in on_their_way:
            self._receive(message)

    @precondition(lambda self: self._at(Stage.ON_WIRE))
    @rule(data=st.data())
    def everything_has_landed(self, data: st.DataObject) -> None:
        self._end(self._draw(data, Stage.ON_WIRE))

    @precondition(lambda self: self._at(*Stage))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self._end(self._draw(data, *set(Stage) - {Stage.ENDED}))

    @rule(node=st.sampled_from(NODES))
    def die_and_come_back(self, node: str) -> None:
        self.wires[node] = Wires(node)
        for running in self._at(*set(Stage) - {Stage.ENDED, Stage.PREPARING}):
            if node in (running.claims.source_node_id, running.claims.target_node_id):
                self._end(running)

    @precondition(lambda self: self.messages)
    @rule()
    def admission_is_never_told(self) -> None:
        self.untold |= {one.move_id for one in self.messages if not one.to}
        self.messages = [one for one in self.messages if one.to]

    @rule()
    def admission_restarts(self) -> None:
        before, self.admission = self.admission, Admission(self.policy, relearning=True)
        self.admission.paths = before.paths
        told = [
            RunningMove(
                ticket_id=hold.claims.ticket_id,
                move_id=hold.claims.move_id,
                session_id=hold.claims.session_id,
                epoch=hold.claims.epoch,
                source_node_id=hold.claims.source_node_id,
                target=hold.target,
                extent_bytes=hold.claims.extent_bytes_max,
                remaining_ms=max(1, hold.remaining_ms(self.now_s)),
            )
            for hold in before.holds.all()
        ]
        self.admission.relearn(tuple(told), (), self.now_s)

    @rule(passed_s=st.floats(0.0, 0.4))
    def wait(self, passed_s: float) -> None:
        """Time passes, and every timer that is due goes off, in order."""
        until_s = self.now_s + passed_s
        while True:
            due = [(at, n) for n in NODES if (at := self._next_s(n)) is not None and at <= until_s]
            if not due:
                break
            at_s, node = min(due)
            self.now_s = max(self.now_s, at_s)
            self._decide(node)
        self.now_s = until_s

    # --- what must hold ----------------------------------------------------------------------

    @invariant()
    def wires_are_never_shared(self) -> None:
        pairs = [
            (one.claims.source_node_id, one.claims.target_node_id)
            for one in self._at(Stage.ON_WIRE)
        ]
        assert len({source for source, _ in pairs}) == len(pairs)
        assert len({target for _, target in pairs}) == len(pairs)
        assert not {(target, source) for source, target in pairs} & set(pairs)

    def teardown(self) -> None:
        """Whoever has the wire lands, all others are granted or refused: nothing is held then."""
        for _ in range(len(self.moves) + 1):
            while self.messages:
                self._receive(self.messages.pop(0))
            for running in self._at(Stage.ON_WIRE, Stage.PREPARING):
                self._end(running)
            self.wait(0.5)
        while self.messages:
            self._receive(self.messages.pop(0))
        assert not self._at(Stage.ON_WIRE, Stage.AT_SOURCE, Stage.AT_TARGET, Stage.OFFERED)
        for wires in self.wires.values():
            assert (wires.held_count, wires.waiting_count) == (0, 0)
            assert wires.next_decision_s() is None
        # Only what nobody told the end of is left to the reaper.
        assert {hold.claims.move_id for hold in self.admission.holds.all()} <= self.untold
        self.admission.expire(self.now_s + 60.0)
        assert len(self.admission.holds) == 0

    # --- the parts ---------------------------------------------------------------------------

    def _at(self, *stages: Stage) -> list[Running]:
        return [one for one in self.moves.values() if one.stage in stages]

    def _draw(self, data: st.DataObject, *stages: Stage) -> Running:
        found = self._at(*stages) or self._at(Stage.ENDED)
        return found[data.draw(st.integers(0, len(found) - 1))]

    def _ask(self, running: Running, direction: WireDirection, node: str, peer: str) -> None:
        claims = running.claims
        ask = WireAsk(
            wire_id=running.request.move_id,
            direction=direction,
            peer_node_id=peer,
            bulk=claims.bulk,
            deadline_s=running.deadline_s,
            move_s=claims.move_ms / 1e3,
            wire_s=claims.wire_ms / 1e3,
        )
        self.wires[node].ask(ask, self.now_s)
        self._decide(node)

    def _next_s(self, node: str) -> float | None:
        return self.wires[node].next_decision_s()

    def _decide(self, node: str) -> None:
        for decision in self.wires[node].decide(self.now_s):
            running = self.moves[decision.wire_id]
            if running.stage is Stage.ENDED:
                continue  # the word of its end is still on its way to this node
            waits = running.stage in (Stage.AT_SOURCE, Stage.AT_TARGET)
            if not isinstance(decision, Granted):
                # Bulk may lose its source's turn until it has heard of the target's grant.
                assert waits or (running.claims.bulk and not running.confirmed)
                self._end(running)
                continue
            assert waits, "granted twice"
            if running.stage is Stage.AT_SOURCE:
                running.stage = Stage.OFFERED
                target = running.claims.target_node_id
                self.messages.append(Message("offer", target, decision.wire_id))
            else:
                assert self.now_s + running.claims.move_ms / 1e3 < running.deadline_s
                running.stage = Stage.ON_WIRE
                source = running.claims.source_node_id
                self.messages.append(Message("grant", source, decision.wire_id))

    def _receive(self, message: Message) -> None:
        running = self.moves[message.move_id]
        claims = running.claims
        if message.what == "offer" and running.stage is Stage.OFFERED:
            running.stage = Stage.AT_TARGET
            self._ask(running, WireDirection.INTO, claims.target_node_id, claims.source_node_id)
        elif message.what == "grant":
            running.confirmed = True
            self.wires[message.to].confirm(message.move_id, self.now_s)
            self._decide(message.to)
        elif message.what == "end":
            self.wires[message.to].end(message.move_id, self.now_s)
            self._decide(message.to)
        elif message.what == "finish":
            ended = report(running.request, ticket_id=claims.ticket_id)
            self.admission.finish_move(ended, self.now_s)

    def _end(self, running: Running) -> None:
        """However: both ends give the wire back and admission is told, each in its own time."""
        if running.stage is Stage.ENDED:
            return
        running.stage = Stage.ENDED
        move_id, claims = running.request.move_id, running.claims
        self.messages += [
            Message("end", claims.source_node_id, move_id),
            Message("end", claims.target_node_id, move_id),
            Message("finish", "", move_id),
        ]


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
