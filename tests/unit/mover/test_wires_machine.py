"""Three nodes that grant each other their wires: no interleaving breaks a rule or stops for good.

Asks, offers, grants, ends, withdrawals and crashes, with messages that take any time; each move's
messages each way arrive in order, as in one stream.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from services.mover.wires import Granted, WireAsk, WireDirection, Wires

INTO, OUT_OF = WireDirection.INTO, WireDirection.OUT_OF
NODES = "abc"
#: One pair more often than the others, so that its two ways meet.
PAIRS = st.sampled_from([*permutations(NODES, 2), *(3 * [("a", "b"), ("b", "a")])])


@dataclass
class Twin:
    """One move as its two ends see it, and what is under way between them."""

    wire_id: str
    source: str
    target: str
    bulk: bool
    deadline_s: float
    move_s: float
    wire_s: float
    to_target: deque[str] = field(default_factory=deque)
    to_source: deque[str] = field(default_factory=deque)
    #: Where this end stands: asked, held, gone; the target's is empty until the offer is there.
    at_source: str = "asked"
    at_target: str = ""
    confirmed: bool = False
    given_up: bool = False
    done: bool = False

    @property
    def sends(self) -> bool:
        """Whether bytes may be on their way."""
        return self.at_source == "held" and self.confirmed

    def ask(self, direction: WireDirection) -> WireAsk:
        peer = self.source if direction is INTO else self.target
        return WireAsk(
            self.wire_id, direction, peer, self.bulk, self.deadline_s, self.move_s, self.wire_s
        )


class WiresMachine(RuleBasedStateMachine):
    """Drives a `Wires` a node next to what each end of each move believes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.caps = (1, 1)
        self.wires: dict[str, Wires] = {}
        self.twins: dict[str, Twin] = {}

    @initialize(into_max=st.integers(1, 2), out_of_max=st.integers(1, 2))
    def start(self, into_max: int, out_of_max: int) -> None:
        self.caps = (into_max, out_of_max)
        self.wires = {node: self.fresh(node) for node in NODES}

    def fresh(self, node: str) -> Wires:
        return Wires(node, into_max=self.caps[0], out_of_max=self.caps[1])

    # --- what happens ----------------------------------------------------------------------

    @rule(
        pair=PAIRS,
        bulk=st.booleans(),
        within_s=st.sampled_from([0.5, 2.0, 5.0, 20.0, math.inf, math.inf]),
        move_s=st.floats(0.0, 3.0),
        wire_s=st.floats(0.0, 3.0),
    )
    def ask(
        self, pair: tuple[str, str], bulk: bool, within_s: float, move_s: float, wire_s: float
    ) -> None:
        wire_id = f"w{len(self.twins)}"
        twin = Twin(wire_id, *pair, bulk, self.now_s + within_s, move_s, wire_s)
        self.twins[wire_id] = twin
        self.wires[twin.source].ask(twin.ask(OUT_OF), self.now_s)
        self.settle(twin.source)

    @precondition(lambda self: self.messages())
    @rule(data=st.data(), count=st.integers(1, 6))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if messages := self.messages():
                self.receive(*data.draw(st.sampled_from(messages)))

    @precondition(lambda self: any(twin.sends for twin in self.twins.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Everything has landed; a target that is gone lets its source find out."""
        going = [twin for twin in self.twins.values() if twin.sends and not twin.done]
        if going:
            self.land(data.draw(st.sampled_from(going)))

    @precondition(lambda self: any(twin.at_source in ("asked", "held") for twin in self.all()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        living = [twin for twin in self.all() if twin.at_source in ("asked", "held")]
        twin = data.draw(st.sampled_from(living))
        twin.given_up = True
        self.end_source(twin)

    @rule(node=st.sampled_from(NODES), luck=st.integers(0, 4))
    def crash(self, node: str, luck: int) -> None:
        """Now and then; and back under its name at once, with nothing."""
        if luck:
            return
        self.wires[node] = self.fresh(node)
        for twin in self.all():
            if twin.source == node and twin.at_source != "gone":
                twin.at_source, twin.given_up = "gone", True
                twin.to_target = deque(["closed"])
            elif twin.target == node and twin.at_source == "held" and twin.at_target != "gone":
                twin.at_target, twin.given_up = "gone", True
                twin.to_source = deque(["closed"])
            elif twin.target == node and twin.at_target in ("asked", "held"):
                twin.at_target = "gone"

    @rule(step_s=st.floats(0.0, 3.0))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s
        for node in NODES:
            self.settle(node)

    # --- what the shells do ------------------------------------------------------------------

    def all(self) -> list[Twin]:
        return list(self.twins.values())

    def messages(self) -> list[tuple[Twin, bool]]:
        return [
            (twin, to_target)
            for twin in self.all()
            for to_target, queue in ((True, twin.to_target), (False, twin.to_source))
            if queue
        ]

    def receive(self, twin: Twin, to_target: bool) -> None:
        message = (twin.to_target if to_target else twin.to_source).popleft()
        if to_target:
            if message == "closed":
                self.end_target(twin)
            elif twin.at_target == "":
                twin.at_target = "asked"
                self.wires[twin.target].ask(twin.ask(INTO), self.now_s)
                self.settle(twin.target)
        elif twin.at_source == "held":
            if message == "granted":
                twin.confirmed = True
                self.wires[twin.source].confirm(twin.wire_id, self.now_s)
                self.settle(twin.source)
            else:
                self.end_source(twin)

    def land(self, twin: Twin) -> None:
        twin.done = twin.at_target == "held"
        self.end_target(twin)

    def end_source(self, twin: Twin) -> None:
        was_held, twin.at_source = twin.at_source == "held", "gone"
        if was_held:
            twin.to_target.append("closed")
        self.wires[twin.source].end(twin.wire_id, self.now_s)
        self.settle(twin.source)

    def end_target(self, twin: Twin) -> None:
        if twin.at_target == "gone":
            return
        twin.at_target = "gone"
        twin.to_source.append("closed")
        self.wires[twin.target].end(twin.wire_id, self.now_s)
        self.settle(twin.target)

    def settle(self, node: str) -> None:
        for decision in self.wires[node].decide(self.now_s):
            twin = self.twins[decision.wire_id]
            if isinstance(decision, Granted):
                assert self.now_s + twin.move_s < twin.deadline_s, "granted at or past its deadline"
                if node == twin.source:
                    assert twin.at_source == "asked"
                    twin.at_source = "held"
                    twin.to_target.append("offer")
                else:
                    assert twin.at_target == "asked"
                    twin.at_target = "held"
                    twin.to_source.append("granted")
            else:
                assert twin.deadline_s < math.inf, "who has no deadline is never late"
                twin.given_up = True
                if node == twin.source and twin.at_source == "held":
                    assert twin.bulk
                    assert not twin.confirmed, "taken from who may have begun"
                    twin.at_source = "gone"
                    twin.to_target.append("closed")
                    continue
                assert decision.numbers["would_wait_ms"] >= decision.numbers["may_wait_ms"] - 1e-3
                if node == twin.source:
                    assert twin.at_source == "asked"
                    twin.at_source = "gone"
                else:
                    assert twin.at_target == "asked"
                    twin.at_target = "gone"
                    twin.to_source.append("closed")
        again = self.wires[node].next_decision_s()
        assert again is None or again > self.now_s

    # --- what always holds -------------------------------------------------------------------

    def ends(self, node: str, direction: WireDirection, state: str) -> list[Twin]:
        if direction is INTO:
            return [t for t in self.all() if t.target == node and t.at_target == state]
        return [t for t in self.all() if t.source == node and t.at_source == state]

    @invariant()
    def no_cap_is_exceeded_and_nothing_is_left_behind(self) -> None:
        for node, wires in self.wires.items():
            held = [len(self.ends(node, direction, "held")) for direction in (INTO, OUT_OF)]
            asked = [len(self.ends(node, direction, "asked")) for direction in (INTO, OUT_OF)]
            assert held[0] <= self.caps[0]
            assert held[1] <= self.caps[1]
            assert (wires.held_count, wires.waiting_count) == (sum(held), sum(asked))

    @invariant()
    def no_pair_is_scheduled_both_ways(self) -> None:
        sending = {(twin.source, twin.target) for twin in self.all() if twin.sends}
        assert not any((target, source) in sending for source, target in sending)

    @invariant()
    def no_wire_lies_idle_while_somebody_may_use_it(self) -> None:
        for node in self.wires:
            for direction, cap in ((INTO, self.caps[0]), (OUT_OF, self.caps[1])):
                if len(self.ends(node, direction, "held")) == cap:
                    continue
                for twin in self.ends(node, direction, "asked"):
                    assert self.opposed(node, twin, direction)

    def opposed(self, node: str, twin: Twin, direction: WireDirection) -> bool:
        peer = twin.source if direction is INTO else twin.target
        if direction is OUT_OF:
            return any(each.source == peer for each in self.ends(node, INTO, "held"))
        there = [each for each in self.ends(node, OUT_OF, "held") if each.target == peer]
        return any(node < peer or each.confirmed for each in there)

    def teardown(self) -> None:
        """Once nothing new happens, everything ends, without any deadline's help."""
        for _ in range(4 * len(self.twins) + 4):
            while messages := self.messages():
                self.receive(*messages[0])
            going = [twin for twin in self.all() if twin.sends]
            if not going:
                break
            self.land(going[-1])
        for twin in self.all():
            assert twin.at_source == "gone", f"{twin} waits for ever"
            assert twin.at_target in ("", "gone")
            assert twin.done or twin.given_up
        for wires in self.wires.values():
            assert (wires.held_count, wires.waiting_count) == (0, 0)
            assert wires.next_decision_s() is None


TestWires = WiresMachine.TestCase
TestWires.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
