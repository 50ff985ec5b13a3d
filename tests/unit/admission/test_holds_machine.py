"""Any interleaving of requests, ends, repeats, silence and restarts keeps every cap and promise."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.admission.calendar import Interval
from services.admission.core import Admission, MoveAnswer
from services.admission.holds import Hold
from services.admission.policy import Policy
from services.admission.requests import MoveRequest, MoveTarget, RunningMove
from worldline.contract import ServiceClass
from worldline.errors import Conflict
from worldline.verdict import RejectReason

from .builders import move, probe, report, sample

NODES = "abcd"
PAIRS = st.sampled_from(list(permutations(NODES, 2)))
FAN_IN_MAX, FAN_OUT_MAX = 2, 1
SLOTS_FREE = 3
RATE_BYTES_PER_S = 1e9
#: Host of each node; two share what verifies, and its digests keep up with two moves.
HOSTS = {"a": "h1", "b": "h1", "c": "h2", "d": "h2"}
VERIFIED_AT_ONCE = 2
CLASSES = st.sampled_from([ServiceClass.C1_INTERACTIVE, ServiceClass.C3_BULK])


def target(node_id: str) -> MoveTarget:
    return MoveTarget(
        node_id,
        f"engine-{node_id}",
        HOSTS[node_id],
        SLOTS_FREE,
        (VERIFIED_AT_ONCE + 0.5) * RATE_BYTES_PER_S,
    )


class HoldsMachine(RuleBasedStateMachine):
    """Drives `Admission` next to a plain table of what should be held."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(
            fan_in_max=FAN_IN_MAX,
            fan_out_max=FAN_OUT_MAX,
            valid_for_ms=2_000,
            lease_min_ms=1_000,
            lease_max_ms=4_000,
        )
        self.admission = Admission(self.policy)
        self.now_s = 0.0
        self.asked = 0
        #: By move, what the twin believes to be held: request, ticket, deadline.
        self.held: dict[str, tuple[MoveRequest, str, float]] = {}

    @initialize()
    def measure(self) -> None:
        for pair in permutations(NODES, 2):
            for _ in range(20):
                self.admission.paths.teach(pair, sample(RATE_BYTES_PER_S), 0.0, 1e9)

    def _forget_expired(self) -> None:
        self.held = {name: one for name, one in self.held.items() if one[2] > self.now_s}

    def _ask(self, request: MoveRequest) -> MoveAnswer:
        self._forget_expired()
        ticket_id = f"ticket-{self.asked}"
        answer = self.admission.admit_move(request, ticket_id, self.now_s)
        assert (answer.claims is not None) == answer.verdict.admitted
        if answer.claims is not None:
            hold = self.admission.holds.of_ticket(ticket_id)
            assert hold is not None
            assert hold.deadline_s > self.now_s
            self.held[request.move_id] = (request, ticket_id, hold.deadline_s)
        return answer

    @rule(
        pair=PAIRS,
        size_bytes=st.integers(1, 500 << 20),
        horizon_ms=st.floats(1.0, 3_000.0),
        service_class=CLASSES,
    )
    def ask(
        self,
        pair: tuple[str, str],
        size_bytes: int,
        horizon_ms: float,
        service_class: ServiceClass,
    ) -> None:
        source, receiver = pair
        self.asked += 1
        request = move(
            self.asked,
            source,
            receiver,
            extent_bytes=size_bytes,
            horizon_ms=horizon_ms,
            service_class=service_class,
        )
        targets = (target(receiver),)
        answer = self._ask(dataclasses.replace(request, targets=targets))
        busy = {
            RejectReason.RECEIVER_BUSY,
            RejectReason.SENDER_BUSY,
            RejectReason.DUPLEX_PAIR,
            RejectReason.VERIFIER_BUSY,
            RejectReason.TARGET_FULL,
        }
        if answer.verdict.reason in busy:
            assert answer.verdict.retry_after_ms > 0

    @rule(pair=PAIRS, size_bytes=st.integers(1, 200 << 20))
    def ask_a_probe(self, pair: tuple[str, str], size_bytes: int) -> None:
        source, receiver = pair
        self.asked += 1
        request = probe(self.asked, source, receiver, extent_bytes=size_bytes)
        self._ask(dataclasses.replace(request, targets=(target(receiver),)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self._forget_expired()
        if not self.held:
            return
        request, ticket_id, _ = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        answer = self.admission.admit_move(request, "unused", self.now_s)
        assert answer.claims is not None
        assert answer.claims.ticket_id == ticket_id

    @precondition(lambda self: self.held)
    @rule(data=st.data(), named=st.booleans(), measured=st.booleans(), twice=st.booleans())
    def finish(self, data: st.DataObject, named: bool, measured: bool, twice: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        request, ticket_id, deadline_s = self.held.pop(name)
        ended = report(
            request,
            ticket_id=ticket_id if named else "",
            sample=sample(RATE_BYTES_PER_S, request.extent_bytes) if measured else None,
        )
        finished = self.admission.finish_move(ended, self.now_s)
        assert (finished is not None) == (deadline_s > self.now_s)
        if twice:
            assert self.admission.finish_move(ended, self.now_s) is None

    @precondition(lambda self: len(self.held) > 1)
    @rule()
    def finish_with_a_strangers_ticket(self) -> None:
        self._forget_expired()
        if len(self.held) < 2:
            return
        (one, _, _), *_, (_, ticket_id, _) = self.held.values()
        try:
            self.admission.finish_move(report(one, ticket_id=ticket_id), self.now_s)
        except Conflict:
            return
        raise AssertionError("a stranger's ticket ended a move")

    @rule(passed_s=st.floats(0.001, 3.0), reap=st.booleans())
    def wait(self, passed_s: float, reap: bool) -> None:
        self.now_s += passed_s
        if reap:
            self.admission.expire(self.now_s)

    @rule()
    def restart(self) -> None:
        """The holds die with the process, the moves do not: they are told."""
        self._forget_expired()
        before = self.admission
        self.admission = Admission(self.policy, relearning=True)
        refused = self.admission.admit_move(move(0), "unused", self.now_s).verdict
        assert refused.reason is RejectReason.RELEARNING
        told = tuple(
            RunningMove(
                ticket_id=ticket_id,
                move_id=request.move_id,
                session_id=request.session_id,
                epoch=request.epoch,
                source_node_id=request.source_node_id,
                target=request.targets[0],
                extent_bytes=request.extent_bytes,
                remaining_ms=max(1, round((deadline_s - self.now_s) * 1e3)),
            )
            for request, ticket_id, deadline_s in self.held.values()
        )
        self.admission.paths = before.paths
        assert self.admission.relearn(told, (), self.now_s) == len(told)
        # Nobody asks again for a move of an earlier process: its answer was lost with it.
        for name, (request, ticket_id, _) in list(self.held.items()):
            hold = self.admission.holds.of_ticket(ticket_id)
            assert hold is not None
            ended = report(request, ticket_id=ticket_id)
            if hold.deadline_s <= self.now_s:
                continue
            assert self.admission.finish_move(ended, self.now_s) is not None
            del self.held[name]

    @invariant()
    def nothing_leaks(self) -> None:
        self._forget_expired()
        holds = [hold for hold in self.admission.holds.all() if hold.deadline_s > self.now_s]
        assert sorted(hold.claims.ticket_id for hold in holds) == sorted(
            ticket_id for _, ticket_id, _ in self.held.values()
        )
        for node_id in NODES:
            assert self.admission.holds.on_slots(target(node_id)) <= SLOTS_FREE

    @invariant()
    def no_cap_is_ever_planned_to_be_exceeded(self) -> None:
        # A move that is late is still there, but nothing was planned for it.
        holds = [hold for hold in self.admission.holds.all() if hold.wire.end_s > self.now_s]
        into, out_of, host = (defaultdict[str, list[Interval]](list) for _ in range(3))
        for hold in holds:
            into[hold.target.node_id].append(hold.wire)
            out_of[hold.claims.source_node_id].append(hold.wire)
            host[hold.target.host_id].append(hold.wire)
        assert max(map(at_once, into.values()), default=0) <= FAN_IN_MAX
        assert max(map(at_once, out_of.values()), default=0) <= FAN_OUT_MAX
        assert max(map(at_once, host.values()), default=0) <= VERIFIED_AT_ONCE
        for one in holds:
            for other in holds:
                assert not (opposite(one, other) and at_once((one.wire, other.wire)) > 1)

    @invariant()
    def what_was_promised_is_planned(self) -> None:
        for hold in self.admission.holds.all():
            claims = hold.claims
            if claims.horizon_ms == 0 or claims.bulk:
                continue
            latest_s = (claims.issued_at_ms + 1 + claims.horizon_ms - claims.move_ms) / 1e3
            assert hold.wire.begin_s < latest_s + 1e-9

    def teardown(self) -> None:
        """Silence for long enough ends everything."""
        self.admission.expire(self.now_s + 3_600)
        assert len(self.admission.holds) == 0
        assert self.admission.holds.next_deadline_s() is None
        for node in NODES:
            assert self.admission.holds.into(node) == ()
            assert self.admission.holds.out_of(node) == ()


def at_once(intervals: Iterable[Interval]) -> int:
    """How many of them overlap at most."""
    listed = list(intervals)
    return max(
        (sum(o.begin_s <= one.begin_s < o.end_s for o in listed) for one in listed), default=0
    )


def opposite(one: Hold, other: Hold) -> bool:
    """Whether one sends where the other receives, and the other way round."""
    return (one.claims.source_node_id, one.target.node_id) == (
        other.target.node_id,
        other.claims.source_node_id,
    )


TestHolds = HoldsMachine.TestCase
TestHolds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
