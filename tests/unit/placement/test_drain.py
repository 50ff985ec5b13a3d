"""Drain: decisions without a loop, and a state machine that interleaves everything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.placement.drain import GAVE_WAY, LOST_WAIT_S, OVERDUE, Drain, Stage
from services.placement.drain_seats import assign_seats
from services.placement.drain_values import (
    Action,
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
    Why,
    Wired,
    Withdraw,
)
from services.placement.records import SessionState
from worldline.errors import InvariantBroken

BUSY = Why("RECEIVER_BUSY", "busy", 500.0)
NEVER = Why("HORIZON_TOO_SHORT", "too far")
FULL = Why("TARGET_FULL", "all slots are taken", 1_000.0)
FLIPPED = Why("INTEGRITY_ERROR", "bytes differed")


def seat(name: str) -> Seat:
    return Seat(f"n{name}", f"e{name}", f"n{name}/cpu")


def resident(name: str, seats: str = "23", node: str = "1", **changes: object) -> Resident:
    made = Resident(name, f"n{node}", SessionState.LIVE, 100, tuple(map(seat, seats)))
    return replace(made, **changes)  # type: ignore[arg-type]


def view(*residents: Resident, slots: int = 9, **changes: object) -> View:
    free = dict.fromkeys((f"n{number}/cpu" for number in range(1, 9)), slots)
    return replace(View(residents, free), **changes)  # type: ignore[arg-type]


def draining(*nodes: str, deadline_s: float = 100.0) -> Drain:
    drain = Drain()
    for node in nodes or ("1",):
        drain.take(Ordered(f"n{node}", deadline_s), 0.0)
    return drain


def look(drain: Drain, seen: View, now: float = 0.0) -> tuple[Action, ...]:
    return drain.take(Looked(seen), now).actions


def asked(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(one.session_id, one.target_node_id) for one in actions if isinstance(one, Ask)]


def test_one_session_at_a_time_leaves_and_the_next_is_asked_for_once_that_has_its_wire() -> None:
    drain = draining()
    everybody = view(resident("a"), resident("b"), resident("c"))
    assert asked(look(drain, everybody)) == [("a", "n2")]
    assert not look(drain, everybody)
    drain.take(Wired("a"), 0.1)
    assert asked(look(drain, everybody)) == [("b", "n3")]
    assert not look(drain, everybody)
    drain.take(Sent("a"), 0.2)
    assert not look(drain, everybody), "b gets ready: whoever is third waits for its wire"
    drain.take(Wired("b"), 0.3)
    assert asked(look(drain, everybody)) == [("c", "n2")]
    drain.take(Committed("a"), 0.3)
    assert drain.moved["n1"] == 1
    assert not look(drain, view(resident("b"), resident("c")))
    assert drain.rounds_left == 1, "that under way"


def test_a_drain_of_several_nodes_is_one_demand_with_disjoint_targets() -> None:
    drain = draining("1", "2")
    here = [resident(f"{node}{number}", "345", node) for node in "12" for number in range(3)]
    begun = asked(look(drain, view(*here)))
    assert len(begun) == 2
    assert len({target for _, target in begun}) == 2
    assert len(drain.plan.rounds) == 3, "no node is in more moves than the drained ones"


def test_it_ends_when_nobody_is_left_and_nothing_can_come() -> None:
    drain = draining()
    assert not look(drain, view(arriving_node_ids=frozenset({"n1"})))
    assert look(drain, view()) == (Conclude("n1", DrainState.DRAINED),)
    assert not drain.node_ids


def test_interactive_moves_go_first() -> None:
    drain = draining()
    here = (resident("a", "2"), resident("b", "2"))
    busy = view(*here, interactive_node_ids=frozenset({"n2"}))
    assert not look(drain, busy)
    assert [one.why.reason for one in drain.left("n1", 0.0) if one.why] == ["INTERACTIVE_FIRST"] * 2
    assert asked(look(drain, view(*here))) == [("a", "n2")]
    drain.take(Wired("a"), 1.0)
    assert asked(look(drain, view(*here))) == [("b", "n2")]
    # What waits behind a's wire has begun nothing, and is asked for again at once.
    assert look(drain, busy) == (Withdraw("b", GAVE_WAY),)
    assert not look(drain, busy), "once"
    drain.take(Failed("b", GAVE_WAY), 1.0)
    assert not look(drain, busy)
    assert asked(look(drain, view(*here))) == [("b", "n2")]


def test_who_found_a_full_fleet_is_seated_when_as_many_slots_are_free_as_before() -> None:
    drain = draining()
    here = (resident("a", "2"), resident("b", "2"))
    assert asked(look(drain, view(*here, slots=1))) == [("a", "n2")]
    full = resident("b", "", nowhere=FULL)
    assert not look(drain, view(here[0], full, slots=0))
    drain.take(Committed("a"), 1.0)
    assert not look(drain, view(full, slots=0), 1.0)
    assert asked(look(drain, view(here[1], slots=1), 2.0)) == [("b", "n2")]


def test_a_reject_is_asked_again_when_it_said_and_elsewhere_first() -> None:
    drain = draining()
    here = view(resident("a"))
    assert asked(look(drain, here)) == [("a", "n2")]
    drain.take(Rejected("a", BUSY), 1.0)
    assert not look(drain, here, 1.2)
    assert drain.wake_s(1.2) == 1.5
    (left,) = drain.left("n1", 1.2)
    assert left.why is not None
    assert (left.why.reason, left.why.retry_after_ms) == ("RECEIVER_BUSY", pytest.approx(300))
    assert asked(look(drain, here, 1.5)) == [("a", "n3")]


def test_a_target_that_will_never_do_is_not_asked_again_and_without_another_it_stays() -> None:
    drain = draining()
    here = view(resident("a"))
    for target in ("n2", "n3"):
        assert asked(look(drain, here)) == [("a", target)]
        drain.take(Rejected("a", NEVER), 1.0)
    assert look(drain, here, 1.0) == (Conclude("n1", DrainState.INCOMPLETE),)
    (left,) = drain.left("n1", 1.0)
    assert left.why == NEVER


def test_a_move_that_was_rolled_back_is_tried_again_later_and_later() -> None:
    drain = draining()
    here, now = view(resident("a")), 0.0
    for pause_s in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        assert len(asked(look(drain, here, now))) == 1
        drain.take(Failed("a", FLIPPED), now)
        assert drain.wake_s(now) == min(now + pause_s, 100.0)
        now += pause_s


def test_a_full_fleet_is_waited_for_until_the_deadline_and_then_said() -> None:
    drain = draining()
    full = view(resident("a", "", nowhere=FULL))
    assert not look(drain, full, 1.0)
    assert look(drain, full, 100.0) == (Conclude("n1", DrainState.INCOMPLETE),)
    assert [one.why for one in drain.left("n1", 100.0)] == [FULL]


def test_no_more_is_planned_into_a_node_than_it_has_slots() -> None:
    drain = draining()
    here = view(resident("a", "2"), resident("b", "2"), slots=1)
    assert asked(look(drain, here)) == [("a", "n2")]
    (left,) = [one for one in drain.left("n1", 0.0) if one.session_id == "b"]
    assert left.why is not None
    assert left.why.reason == "TARGET_FULL"
    drain.take(Committed("a"), 1.0)
    full = view(resident("b", "2"), slots=0)
    assert not look(drain, full, 1.0)
    assert asked(look(drain, view(resident("b", "2"), slots=1), 2.0)) == [("b", "n2")]


def test_at_the_deadline_what_waits_is_withdrawn_and_what_moves_is_waited_for() -> None:
    drain = draining()
    here = (resident("a"), resident("b"), resident("c"))
    look(drain, view(*here))
    drain.take(Wired("a"), 1.0)
    look(drain, view(*here), 1.0)
    assert look(drain, view(*here), 100.0) == (Withdraw("b", OVERDUE),)
    drain.take(Failed("b", OVERDUE), 100.1)
    assert not look(drain, view(*here), 100.1)
    drain.take(Committed("a"), 100.2)
    assert look(drain, view(*here[1:]), 100.2) == (Conclude("n1", DrainState.INCOMPLETE),)
    assert [one.why for one in drain.left("n1", 100.2)] == [OVERDUE, OVERDUE]


def test_what_is_suspended_is_said_and_not_waited_for() -> None:
    drain = draining()
    here = view(resident("a", state=SessionState.SUSPENDED))
    assert look(drain, here) == (Conclude("n1", DrainState.INCOMPLETE),)
    assert [one.why.reason for one in drain.left("n1", 0.0) if one.why] == ["SESSION_SUSPENDED"]


def test_what_is_lost_may_come_back_for_a_while() -> None:
    drain = draining()
    lost = view(resident("a", state=SessionState.LOST))
    assert not look(drain, lost, 1.0)
    assert drain.wake_s(1.0) == 1.0 + LOST_WAIT_S
    assert asked(look(drain, view(resident("a")), 2.0)) == [("a", "n2")]
    drain.take(Failed("a", FLIPPED), 3.0)
    assert not look(drain, lost, 3.0)
    assert not look(drain, lost, 2.9 + LOST_WAIT_S), "since it was lost anew"
    assert look(drain, lost, 3.0 + LOST_WAIT_S) == (Conclude("n1", DrainState.INCOMPLETE),)
    assert [one.why.reason for one in drain.left("n1", 9.0) if one.why] == ["SESSION_LOST"]


@pytest.mark.parametrize(
    "state",
    [
        SessionState.OPENING,
        SessionState.MOVING,
        SessionState.SUSPENDING,
        SessionState.RESUMING,
    ],
)
def test_what_is_about_to_change_is_waited_for(state: SessionState) -> None:
    drain = draining()
    assert not look(drain, view(resident("a", state=state)))
    assert asked(look(drain, view(resident("a")))) == [("a", "n2")]


def test_a_node_that_is_drained_no_more_keeps_what_has_not_begun() -> None:
    drain = draining()
    here = view(resident("a"), resident("b"))
    look(drain, here)
    drain.take(Wired("a"), 1.0)
    look(drain, here, 1.0)
    assert [type(one) for one in drain.take(Dropped("n1"), 1.0).actions] == [Withdraw]
    drain.take(Failed("b", GAVE_WAY), 1.0)
    drain.take(Committed("a"), 1.0)
    assert not look(drain, view(), 1.0)
    assert not drain.flights


def test_an_event_of_a_move_that_is_not_under_way_is_a_bug() -> None:
    with pytest.raises(InvariantBroken):
        draining().take(Wired("a"), 0.0)


def test_who_has_least_to_choose_from_chooses_first() -> None:
    residents = [resident("a", "23"), resident("b", "2"), resident("c", "23")]
    free = {"n2/cpu": 1, "n3/cpu": 2}
    seats = assign_seats([(one, one.seats) for one in residents], free, {}, {})
    assert {name: one.node_id for name, one in seats.items()} == {"a": "n3", "b": "n2", "c": "n3"}


# --- any interleaving --------------------------------------------------------------------------

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
