"""Any interleaving of requests, ends, repeats and silence keeps every cap and leaks no hold."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.admission.core import Admission
from services.admission.policy import Policy
from services.admission.requests import MoveRequest
from worldline.errors import Conflict

from .builders import probe, report, sample

PAIRS = st.sampled_from(list(permutations("abcd", 2)))
FAN_IN_MAX, FAN_OUT_MAX = 2, 1


class HoldsMachine(RuleBasedStateMachine):
    """Drives `Admission` next to a plain list of what should be held."""

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
        #: What the twin believes to be held: request, ticket, deadline.
        self.held: list[tuple[MoveRequest, str, float]] = []

    def _forget_expired(self) -> None:
        self.held = [entry for entry in self.held if entry[2] > self.now_s]

    @rule(pair=PAIRS, size_bytes=st.integers(1, 200 << 20))
    def ask(self, pair: tuple[str, str], size_bytes: int) -> None:
        source, target = pair
        self.asked += 1
        request = probe(self.asked, source, target, extent_bytes=size_bytes)
        self._forget_expired()
        into = [held for held, _, _ in self.held if held.target_node_id == target]
        out_of = [held for held, _, _ in self.held if held.source_node_id == source]
        opposite = [
            held
            for held, _, _ in self.held
            if (held.source_node_id, held.target_node_id) == (target, source)
        ]
        free = len(into) < FAN_IN_MAX and len(out_of) < FAN_OUT_MAX and not opposite
        answer = self.admission.admit_move(request, f"ticket-{self.asked}", self.now_s)
        assert answer.verdict.admitted == free
        if answer.claims is None:
            assert answer.verdict.retry_after_ms > 0
            return
        life_s = (answer.claims.valid_for_ms + answer.claims.lease_ms) / 1e3
        self.held.append((request, answer.claims.ticket_id, self.now_s + life_s))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self._forget_expired()
        if not self.held:
            return
        request, ticket_id, _ = data.draw(st.sampled_from(self.held))
        answer = self.admission.admit_move(request, "unused", self.now_s)
        assert answer.claims is not None
        assert answer.claims.ticket_id == ticket_id

    @precondition(lambda self: self.held)
    @rule(data=st.data(), named=st.booleans(), measured=st.booleans(), twice=st.booleans())
    def finish(self, data: st.DataObject, named: bool, measured: bool, twice: bool) -> None:
        entry = data.draw(st.sampled_from(self.held))
        request, ticket_id, deadline_s = entry
        ended = report(
            request,
            ticket_id=ticket_id if named else "",
            sample=sample(1e9, request.extent_bytes) if measured else None,
        )
        finished = self.admission.finish_move(ended, self.now_s)
        assert (finished is not None) == (deadline_s > self.now_s)
        self.held.remove(entry)
        if twice:
            assert self.admission.finish_move(ended, self.now_s) is None

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def finish_with_a_strangers_ticket(self, data: st.DataObject) -> None:
        self._forget_expired()
        if len(self.held) < 2:
            return
        (one, _, _), (_, ticket_id, _) = self.held[0], self.held[-1]
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

    @invariant()
    def caps_hold_and_nothing_leaks(self) -> None:
        self._forget_expired()
        holds = [hold for hold in self.admission.holds.all() if hold.deadline_s > self.now_s]
        assert sorted(hold.claims.ticket_id for hold in holds) == sorted(
            ticket_id for _, ticket_id, _ in self.held
        )
        into = Counter(hold.claims.target_node_id for hold in holds)
        out_of = Counter(hold.claims.source_node_id for hold in holds)
        pairs = {(hold.claims.source_node_id, hold.claims.target_node_id) for hold in holds}
        assert max(into.values(), default=0) <= FAN_IN_MAX
        assert max(out_of.values(), default=0) <= FAN_OUT_MAX
        assert not {(target, source) for source, target in pairs} & pairs

    def teardown(self) -> None:
        """Silence for long enough ends everything."""
        self.admission.expire(self.now_s + 3_600)
        assert len(self.admission.holds) == 0
        assert self.admission.holds.next_deadline_s() is None
        for node in "abcd":
            assert self.admission.holds.into(node) == ()
            assert self.admission.holds.out_of(node) == ()


TestHolds = HoldsMachine.TestCase
TestHolds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
