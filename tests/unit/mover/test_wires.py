"""Wires: order of grants, refusals as soon as they are due, and the two ways of a pair."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.wireforecast import expected_end_s
from services.mover.wires import Granted, Refused, WireAsk, WireDirection, Wires
from worldline.errors import InvalidInput, InvariantBroken

INTO, OUT_OF = WireDirection.INTO, WireDirection.OUT_OF


def ask(wire_id: str, **changes: Any) -> WireAsk:
    values: dict[str, Any] = {
        "direction": INTO,
        "peer_node_id": f"peer-of-{wire_id}",
        "bulk": False,
        "deadline_s": math.inf,
        "move_s": 1.0,
        "wire_s": 1.0,
    }
    return WireAsk(wire_id, **{**values, **changes})


def asked(*asks: WireAsk, node_id: str = "m", now_s: float = 0.0, **caps: int) -> Wires:
    wires = Wires(node_id, **caps)
    for each in asks:
        wires.ask(each, now_s)
    return wires


def granted(wires: Wires, now_s: float) -> list[str]:
    """Who gets a wire now; nobody may be refused."""
    decisions = wires.decide(now_s)
    assert all(isinstance(each, Granted) for each in decisions), decisions
    return [each.wire_id for each in decisions]


def refused(wires: Wires, now_s: float) -> dict[str, dict[str, float]]:
    """Who is refused now; nobody may be granted."""
    decisions = wires.decide(now_s)
    found = {each.wire_id: each.numbers for each in decisions if isinstance(each, Refused)}
    assert len(found) == len(decisions), decisions
    return found


# --- order -----------------------------------------------------------------------------------


def test_the_earliest_deadline_first_bulk_last_ties_by_arrival() -> None:
    wires = asked(
        ask("bulk", bulk=True, deadline_s=50.0),
        ask("late", deadline_s=90.0),
        ask("tie-1", deadline_s=70.0),
        ask("tie-2", deadline_s=70.0),
        ask("early", deadline_s=60.0),
        ask("probe", bulk=True),
    )
    order = []
    for _ in range(6):
        (one,) = granted(wires, 0.0)
        order.append(one)
        assert granted(wires, 0.0) == []
        wires.end(one, 0.0)
    assert order == ["early", "tie-1", "tie-2", "late", "bulk", "probe"]
    assert (wires.held_count, wires.waiting_count, wires.next_decision_s()) == (0, 0, None)


def test_nobody_is_interrupted() -> None:
    wires = asked(ask("bulk", bulk=True))
    assert granted(wires, 0.0) == ["bulk"]
    wires.ask(ask("urgent", deadline_s=100.0), 0.0)
    assert granted(wires, 0.0) == []
    wires.end("bulk", 1.0)
    assert granted(wires, 1.0) == ["urgent"]


def test_each_way_has_a_cap_of_its_own() -> None:
    directions = [INTO, INTO, INTO, OUT_OF, OUT_OF]
    wires = asked(
        *(ask(str(number), direction=way) for number, way in enumerate(directions)), into_max=2
    )
    assert granted(wires, 0.0) == ["0", "1", "3"]
    assert (wires.held_count, wires.waiting_count) == (3, 2)
    wires.end("3", 0.0)
    assert granted(wires, 0.0) == ["4"]
    wires.end("0", 0.0)
    assert granted(wires, 0.0) == ["2"]


def test_an_end_may_be_told_twice_and_a_wire_asked_for_once() -> None:
    wires = asked(ask("one"))
    with pytest.raises(InvariantBroken):
        wires.ask(ask("one"), 0.0)
    wires.end("one", 0.0)
    wires.end("one", 0.0)
    wires.end("never", 0.0)
    wires.confirm("never", 0.0)
    assert granted(wires, 0.0) == []


def test_no_wire_to_oneself_and_no_duration_that_is_none() -> None:
    with pytest.raises(InvalidInput) as caught:
        asked(ask("one", peer_node_id="m"))
    assert caught.value.field == "peer_node_id"
    for field, value in (
        ("move_s", -1.0),
        ("move_s", math.nan),
        ("wire_s", math.inf),
        ("deadline_s", math.nan),
    ):
        with pytest.raises(InvalidInput) as caught:
            ask("one", **{field: value})
        assert caught.value.field == field


# --- in time ---------------------------------------------------------------------------------


def test_a_grant_is_strictly_before_what_is_left() -> None:
    """Condition (1) is strict."""
    assert granted(asked(ask("one", deadline_s=1.0 + 1e-9)), 0.0) == ["one"]
    assert set(refused(asked(ask("one", deadline_s=1.0)), 0.0)) == {"one"}


def test_who_would_come_too_late_is_refused_at_once_with_the_numbers() -> None:
    wires = asked(ask("holder", wire_s=3.0))
    assert granted(wires, 0.0) == ["holder"]
    wires.ask(ask("first", deadline_s=9.0, wire_s=2.0), 1.0)
    wires.ask(ask("tight", deadline_s=10.0, move_s=5.0), 1.0)  # by 5, and its turn is at 5
    wires.ask(ask("fits", deadline_s=10.1, move_s=5.0), 1.0)
    numbers = refused(wires, 1.0)
    assert set(numbers) == {"tight"}, "the refused one keeps nobody waiting"
    assert numbers["tight"] == pytest.approx(
        {
            "waited_ms": 0,
            "would_wait_ms": 4000,
            "may_wait_ms": 4000,
            "move_ms": 5000,
            "ahead": 2,
            "retry_after_ms": 4000,
        }
    )


def test_a_newcomer_with_an_earlier_deadline_pushes_out_who_can_no_longer_make_it() -> None:
    wires = asked(ask("holder"))
    assert granted(wires, 0.0) == ["holder"]
    wires.ask(ask("later", deadline_s=3.0), 0.0)  # its turn at 1, needed before 2
    assert granted(wires, 0.0) == []
    wires.ask(ask("bulk", bulk=True, deadline_s=2.5), 0.0)  # waits for it, whatever its deadline
    assert set(refused(wires, 0.0)) == {"bulk"}
    wires.ask(ask("sooner", deadline_s=2.9), 0.0)
    assert set(refused(wires, 0.0)) == {"later"}


def test_a_holder_that_is_overdue_takes_as_much_longer_as_it_is_late() -> None:
    assert expected_end_s(1.0, 2.0, 2.9) == 3.0
    assert expected_end_s(1.0, 2.0, 3.0) == 3.0
    assert expected_end_s(1.0, 2.0, 4.0) == 5.0
    wires = asked(ask("holder"))
    assert granted(wires, 0.0) == ["holder"]
    wires.ask(ask("waits", deadline_s=4.0), 0.0)  # needed before 3, expected at 1
    assert granted(wires, 0.0) == []
    assert wires.next_decision_s() == 2.0, "late by 1 then, so not before 3"
    assert granted(wires, 1.9) == []
    assert set(refused(wires, 2.0)) == {"waits"}


def test_the_more_wires_the_shorter_the_wait() -> None:
    wires = asked(ask("a", wire_s=4.0), ask("b", wire_s=6.0), into_max=2)
    assert granted(wires, 0.0) == ["a", "b"]
    for number in range(2):
        wires.ask(ask(f"at-{number}", deadline_s=20.0 + number, wire_s=5.0), 0.0)
    # Free at 4 and 6, then at 9 and 11.
    wires.ask(ask("misses", deadline_s=10.0 + 20.0, move_s=21.0), 0.0)
    wires.ask(ask("makes", deadline_s=10.0 + 20.0, move_s=20.9), 0.0)
    assert set(refused(wires, 0.0)) == {"misses"}


@given(
    waits=st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 5), st.floats(0, 5)), max_size=6),
    wire_s=st.floats(0.01, 5),
    share=st.floats(0, 0.999),
)
def test_between_events_nothing_is_said_before_the_next_decision(
    waits: list[tuple[float, float, float]], wire_s: float, share: float
) -> None:
    """So that a timer at `next_decision_s` misses nothing."""
    wires = asked(ask("holder", wire_s=wire_s))
    assert granted(wires, 0.0) == ["holder"]
    for number, (deadline_s, move_s, each_s) in enumerate(waits):
        wires.ask(ask(str(number), deadline_s=deadline_s, move_s=move_s, wire_s=each_s), 0.0)
    now_s = 0.0
    wires.decide(now_s)
    while (next_s := wires.next_decision_s()) is not None:
        assert next_s > now_s
        if next_s - now_s > 0.0011:  # closer, it is not worth a timer of its own
            assert wires.decide(now_s + share * (next_s - now_s)) == ()
        now_s = next_s
        assert all(isinstance(each, Refused) for each in wires.decide(now_s))
    assert wires.waiting_count == 0, "a finite deadline ends every wait"


# --- the two ways of a pair --------------------------------------------------------------------


def out_to(peer: str, wire_id: str = "out", **changes: Any) -> WireAsk:
    return ask(wire_id, direction=OUT_OF, peer_node_id=peer, **changes)


def in_from(peer: str, wire_id: str = "in", **changes: Any) -> WireAsk:
    return ask(wire_id, peer_node_id=peer, **changes)


@pytest.mark.parametrize("peer", ["a", "z"])
def test_no_turn_towards_a_node_whose_move_is_coming_in(peer: str) -> None:
    wires = asked(in_from(peer))
    assert granted(wires, 0.0) == ["in"]
    wires.ask(out_to(peer), 0.0)
    wires.ask(out_to("other", "next"), 0.0)
    assert granted(wires, 0.0) == ["next"], "the wire does not lie idle"
    wires.end("next", 0.0)
    assert granted(wires, 0.0) == []
    wires.end("in", 0.0)
    assert granted(wires, 0.0) == ["out"]


def test_the_first_of_a_pair_grants_nothing_from_its_own_turn_on() -> None:
    wires = asked(out_to("z"))
    assert granted(wires, 0.0) == ["out"]
    wires.ask(in_from("z"), 0.0)
    assert granted(wires, 0.0) == []
    wires.confirm("out", 0.0)
    assert granted(wires, 0.0) == []
    wires.end("out", 0.0)
    assert granted(wires, 0.0) == ["in"]


def test_the_second_of_a_pair_waits_only_for_what_has_been_granted() -> None:
    wires = asked(out_to("a"))
    assert granted(wires, 0.0) == ["out"]
    wires.ask(in_from("a"), 0.0)
    assert granted(wires, 0.0) == ["in"], "or both would wait for ever"
    again = asked(out_to("a"))
    assert granted(again, 0.0) == ["out"]
    again.confirm("out", 0.0)
    again.ask(in_from("a"), 0.0)
    assert granted(again, 0.0) == []


def test_of_a_pair_the_earlier_deadline_goes_first() -> None:
    wires = asked(out_to("z", deadline_s=9.0), in_from("z", deadline_s=8.0))
    assert granted(wires, 0.0) == ["in"]
    wires = asked(out_to("z", deadline_s=8.0), in_from("z", deadline_s=9.0))
    assert granted(wires, 0.0) == ["out"]


def test_who_waits_for_the_other_way_is_refused_as_soon_as_that_takes_too_long() -> None:
    wires = asked(out_to("z", wire_s=5.0))
    assert granted(wires, 0.0) == ["out"]
    wires.confirm("out", 2.0)  # until 7
    wires.ask(in_from("z", "tight", deadline_s=8.0), 2.0)
    wires.ask(in_from("z", "fits", deadline_s=8.1), 2.0)
    wires.ask(in_from("b", "passes", deadline_s=9.9), 2.0)
    decisions = wires.decide(2.0)
    assert decisions[0] == Granted("passes"), "what may not be used is passed on"
    assert [each.wire_id for each in decisions[1:]] == ["tight"]


def test_who_holds_and_who_waits_is_on_record() -> None:
    wires = asked(out_to("z", wire_s=5.0, deadline_s=9.0))
    wires.ask(in_from("b"), 1.0)
    wires.decide(1.0)
    out, into = wires.standings(2.0)
    assert (out.held, out.waited_s, out.remaining_s) == (False, 2.0, 7.0)
    assert (into.held, into.waited_s, into.remaining_s) == (True, 0.0, math.inf)
    wires.confirm("out", 2.5)
    assert wires.standings(4.0)[0].held
    assert wires.standings(4.0)[0].waited_s == 2.5


# --- bulk that gives way ---------------------------------------------------------------------


def test_bulk_gives_up_a_turn_that_its_peer_has_not_granted_to_an_interactive_move() -> None:
    wires = asked(ask("bulk", direction=OUT_OF, bulk=True, deadline_s=90.0))
    assert granted(wires, 0.0) == ["bulk"]
    wires.ask(ask("now", direction=OUT_OF, deadline_s=9.0, wire_s=2.0), 1.0)
    taken, recalled = wires.decide(1.0)
    assert (recalled.wire_id, taken) == ("bulk", Granted("now"))
    assert isinstance(recalled, Refused)
    assert recalled.numbers["waited_ms"] == 1_000
    assert recalled.numbers["retry_after_ms"] == 2_000
    wires.confirm("bulk", 1.0)  # too late: it has no turn any more
    assert (wires.held_count, wires.waiting_count) == (1, 0)


def test_what_the_peer_has_granted_is_not_taken_away() -> None:
    wires = asked(ask("bulk", direction=OUT_OF, bulk=True, deadline_s=90.0))
    assert granted(wires, 0.0) == ["bulk"]
    wires.confirm("bulk", 0.5)
    wires.ask(ask("now", direction=OUT_OF, deadline_s=9.0), 1.0)
    assert wires.decide(1.0) == ()


@pytest.mark.parametrize(
    ("holder", "newcomer"),
    [
        ({"bulk": True}, {}),  # a probe: it measures for somebody who waits
        ({"deadline_s": 90.0}, {"deadline_s": 9.0}),  # interactive itself
        ({"bulk": True, "deadline_s": 90.0}, {"bulk": True, "deadline_s": 9.0}),
        ({"bulk": True, "deadline_s": 90.0, "direction": INTO}, {"direction": INTO}),
    ],
)
def test_nobody_else_gives_way(holder: dict[str, Any], newcomer: dict[str, Any]) -> None:
    wires = asked(ask("holder", **{"direction": OUT_OF, **holder}))
    assert granted(wires, 0.0) == ["holder"]
    wires.ask(ask("newcomer", **{"direction": OUT_OF, **newcomer}), 1.0)
    assert wires.decide(1.0) == ()


def test_no_more_give_way_than_are_in_the_way_and_the_latest_deadline_first() -> None:
    bulk = {"direction": OUT_OF, "bulk": True}
    wires = asked(
        *(ask(f"bulk-{at}", deadline_s=at, **bulk) for at in (50.0, 70.0, 60.0)), out_of_max=3
    )
    assert len(granted(wires, 0.0)) == 3
    wires.ask(ask("now", direction=OUT_OF, deadline_s=9.0), 1.0)
    assert [each.wire_id for each in wires.decide(1.0)] == ["now", "bulk-70.0"]
