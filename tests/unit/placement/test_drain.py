"""Drain: decisions without a loop."""

from __future__ import annotations

import pytest

from services.placement.drain import GAVE_WAY, LOST_WAIT_S, OVERDUE, Drain
from services.placement.drain_values import (
    Action,
    Ask,
    Committed,
    Conclude,
    DrainState,
    Dropped,
    Failed,
    Looked,
    Ordered,
    Rejected,
    Sent,
    View,
    Wired,
    Withdraw,
)
from services.placement.records import SessionState
from tests.unit.placement.drains import BUSY, FLIPPED, FULL, NEVER, resident, view
from worldline.errors import InvariantBroken


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
