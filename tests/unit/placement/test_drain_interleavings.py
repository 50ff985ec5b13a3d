"""Drain: a state machine that interleaves everything."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.placement.drain import GAVE_WAY, Drain, Stage
from services.placement.drain_values import (
    Ask,
    Committed,
    Conclude,
    DrainState,
    Dropped,
    Event,
    Failed,
    Looked,
    Ordered,
    Rejected,
    Resident,
    Seat,
    Sent,
    View,
    Wired,
    Withdraw,
)
from services.placement.records import SessionState
from tests.unit.placement.drains import BUSY, FLIPPED, FULL, NEVER

NODES = tuple(f"n{number}" for number in range(1, 6))
SLOTS = 3


@dataclass(eq=False)
class World:
    """Where a session is, and how far its move is."""

    node: str
    state: SessionState = SessionState.LIVE
    target: str = ""
    stage: Stage | None = None
    withdrawn: bool = False
    never: set[str] = field(default_factory=set)

    @property
    def live(self) -> bool:
        return self.state is SessionState.LIVE


class Interleavings(RuleBasedStateMachine):
    """Sessions come, go and change by themselves; drains begin and end; moves end in any way."""

    def __init__(self) -> None:
        super().__init__()
        self.drain = Drain()
        self.now = 0.0
        self.worlds: dict[str, World] = {}
        self.ordered: dict[str, float] = {}
        self.interactive: list[tuple[str, ...]] = []
        self.opened = 0

    # --- what the decision is told -------------------------------------------------------------

    def view(self) -> View:
        busy = {node for pair in self.interactive for node in pair}
        return View(
            tuple(
                self.resident(name)
                for name in self.worlds
                if self.worlds[name].node in self.ordered
            ),
            {node: self.free(node) for node in NODES},
            frozenset(busy),
        )

    def resident(self, name: str) -> Resident:
        world = self.worlds[name]
        seats = tuple(
            Seat(node, node, node)
            for node in NODES
            if node != world.node and node not in self.ordered and self.free(node) > 0
        )
        nowhere = None if seats else FULL
        # Still live while it moves: what the drain has begun itself, it need not be told.
        return Resident(name, world.node, world.state, 10, seats, nowhere)

    def free(self, node: str) -> int:
        taken = sum(node in (one.node, one.target) for one in self.worlds.values())
        return max(0, SLOTS - taken)

    def tell(self, event: Event) -> None:
        for action in self.drain.take(event, self.now).actions:
            if isinstance(action, Ask):
                self.check_ask(action)
                world = self.worlds[action.session_id]
                world.stage, world.target, world.withdrawn = (
                    Stage.ASKED,
                    action.target_node_id,
                    False,
                )
            elif isinstance(action, Withdraw):
                world = self.worlds[action.session_id]
                assert world.stage is Stage.ASKED, "only what has not got its wire"
                assert not world.withdrawn, "once"
                world.withdrawn = True
            else:
                self.check_conclusion(action)

    def check_ask(self, ask: Ask) -> None:
        world = self.worlds[ask.session_id]
        assert world.stage is None, "no session has two moves"
        assert world.state is SessionState.LIVE
        assert world.node == ask.source_node_id
        assert self.ordered[world.node] > self.now
        assert ask.target_node_id not in self.ordered
        busy = {node for pair in self.interactive for node in pair}
        assert busy.isdisjoint({ask.source_node_id, ask.target_node_id})
        for node in (ask.source_node_id, ask.target_node_id):
            here = [one for one in self.worlds.values() if node in (one.node, one.target)]
            asked = [one for one in here if one.stage is Stage.ASKED]
            wired = [one for one in here if one.stage is Stage.WIRED]
            assert not asked, "whoever was asked for before goes first"
            assert len(wired) <= 1

    def check_conclusion(self, end: Conclude) -> None:
        here = [one for one in self.worlds.values() if one.node == end.node_id]
        assert all(one.stage is None for one in here)
        assert (end.state is DrainState.DRAINED) == (not here)
        if self.now < self.ordered[end.node_id]:
            live = [
                name for name, one in self.worlds.items() if one.node == end.node_id and one.live
            ]
            for name in live:
                seats = {seat.node_id for seat in self.resident(name).seats}
                assert seats <= self.worlds[name].never
                assert seats, "a full fleet is waited for"

    # --- what happens --------------------------------------------------------------------------

    @rule(node=st.sampled_from(NODES), for_s=st.integers(1, 20))
    def order(self, node: str, for_s: int) -> None:
        self.ordered[node] = self.now + for_s
        self.tell(Ordered(node, self.now + for_s))

    @precondition(lambda self: self.ordered)
    @rule(data=st.data())
    def undrain(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.ordered)))
        del self.ordered[node]
        self.tell(Dropped(node))

    @rule()
    def looked(self) -> None:
        self.tell(Looked(self.view()))

    @rule(by_s=st.floats(0.01, 5))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s

    @rule(node=st.sampled_from(NODES))
    def opens(self, node: str) -> None:
        if node not in self.ordered and self.free(node):
            self.opened += 1
            self.worlds[f"s{self.opened}"] = World(node)

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), becomes=st.sampled_from([None, *SessionState]))
    def changes_by_itself(self, data: st.DataObject, becomes: SessionState | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.worlds)))
        if self.worlds[name].stage is not None:
            return
        if becomes is None or becomes is SessionState.CLOSED:
            del self.worlds[name]
        else:
            self.worlds[name].state = becomes

    @rule(pair=st.sets(st.sampled_from(NODES), min_size=2, max_size=2))
    def interactive_begins(self, pair: set[str]) -> None:
        self.interactive.append(tuple(sorted(pair)))

    @precondition(lambda self: self.interactive)
    @rule()
    def interactive_ends(self) -> None:
        self.interactive.pop()

    def moving(self, *stages: Stage) -> list[str]:
        return sorted(name for name, one in self.worlds.items() if one.stage in stages)

    @precondition(lambda self: self.moving(Stage.ASKED))
    @rule(data=st.data())
    def gets_its_wire(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.moving(Stage.ASKED)))
        world = self.worlds[name]
        same_way = [
            one
            for one in self.worlds.values()
            if one.stage is Stage.WIRED and (one.node == world.node or one.target == world.target)
        ]
        if world.withdrawn or same_way:
            return  # as the movers' queues have it
        others = {
            n
            for one in self.worlds.values()
            if one.stage is Stage.WIRED
            for n in (one.node, one.target)
        }
        assert others.isdisjoint({world.node, world.target}), "one move at a node"
        world.stage = Stage.WIRED
        self.tell(Wired(name))

    @precondition(lambda self: self.moving(Stage.WIRED))
    @rule(data=st.data())
    def gives_its_wire_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.moving(Stage.WIRED)))
        self.worlds[name].stage = Stage.SENT
        self.tell(Sent(name))

    @precondition(lambda self: self.moving(*Stage))
    @rule(data=st.data(), how=st.sampled_from(["commit", "abort", "busy", "never"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(self.moving(*Stage)))
        world = self.worlds[name]
        if how == "commit" and world.stage is Stage.SENT:
            world.node = world.target
            end: Event = Committed(name)
        elif how in ("busy", "never") and world.stage is Stage.ASKED and not world.withdrawn:
            end = Rejected(name, BUSY if how == "busy" else NEVER)
            if how == "never":
                world.never.add(world.target)
        else:
            end = Failed(name, FLIPPED)
        world.stage, world.target, world.withdrawn = None, "", False
        self.tell(end)

    # --- what always holds ---------------------------------------------------------------------

    @invariant()
    def what_is_under_way_is_known(self) -> None:
        moving = {name for name, one in self.worlds.items() if one.stage is not None}
        assert set(self.drain.flights) == moving

    @invariant()
    def nobody_is_lost(self) -> None:
        self.tell(Looked(self.view()))
        for node in self.ordered:
            left = {one.session_id: one for one in self.drain.left(node, self.now)}
            assert set(left) == {name for name, one in self.worlds.items() if one.node == node}
            for name, one in left.items():
                assert (one.why is None) == (self.worlds[name].stage is not None)

    def teardown(self) -> None:
        """Left alone, with nothing in the way, every drain ends."""
        self.interactive.clear()
        for _ in range(200):
            self.tell(Looked(self.view()))
            for name in self.moving(*Stage):
                world = self.worlds[name]
                if world.withdrawn:
                    world.stage, world.target, world.withdrawn = None, "", False
                    self.tell(Failed(name, GAVE_WAY))
                else:
                    self.tell(Wired(name))
                    self.tell(Sent(name))
                    world.node, world.stage, world.target = world.target, None, ""
                    self.tell(Committed(name))
            self.now += 1.0
        assert not self.drain.node_ids
        assert not self.drain.flights


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
#: A busy machine takes its time.
TestInterleavings.pytestmark = [pytest.mark.timeout(600)]
