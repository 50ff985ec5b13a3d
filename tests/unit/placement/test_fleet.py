"""Leases and the snapshot that choices are made from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.placement.fleet import RELEASED_MAX, Fleet
from services.placement.phases import MovePhase
from services.placement.records import SessionState, address
from services.placement.values import Party, SlotName
from tests.rows import row
from tests.unit.placement.makers import contract, engine, entry, node, session
from worldline.errors import Fenced, InvalidInput, NotFound


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet(node_lease_ms=1_000, engine_lease_ms=500)
    for name in ("1", "2"):
        fleet.put_node(node(name), 0.0)
        fleet.put_engine(engine(name), 0.0)
    return fleet


def test_a_lease_runs_out_and_is_renewed(fleet: Fleet) -> None:
    assert fleet.engine_alive("e1", 0.499)
    assert not fleet.engine_alive("e1", 0.5)
    fleet.renew_engine("e1", "i1", (), 0.6)
    assert fleet.engine_alive("e1", 1.0)
    assert fleet.node_alive("n1", 0.999)
    assert not fleet.node_alive("n1", 1.0)
    fleet.renew_node("n1", "j1", Counter(), 1.5)
    assert fleet.node_alive("n1", 2.0)
    assert not fleet.node_alive("nobody", 0.0)


def test_silence_that_nobody_listened_to_is_excused(fleet: Fleet) -> None:
    fleet.renew_engine("e1", "i1", (), 0.25)
    fleet.excuse(10.0, 10.25)  # nobody was heard from 0.25 on
    # Neither longer than the silence that was excused, nor than a lease from now.
    assert fleet.engine_alive("e2", 10.49)
    assert not fleet.engine_alive("e2", 10.5)
    assert fleet.engine_alive("e1", 10.74)
    assert not fleet.engine_alive("e1", 10.75)
    assert fleet.node_alive("n1", 10.99)
    assert not fleet.node_alive("n1", 11.0)


@given(renewed_s=st.floats(0.0, 100.0), silent_s=st.floats(0.0, 10.0), late_s=st.floats(0.0, 10.0))
def test_an_excuse_shortens_no_lease_and_lasts_no_longer_than_one(
    renewed_s: float, silent_s: float, late_s: float
) -> None:
    fleet = Fleet(node_lease_ms=1_000, engine_lease_ms=500)
    fleet.put_node(node("1"), renewed_s)
    fleet.put_engine(engine("1"), renewed_s)
    before_s, now = fleet.alive_until("e1", "n1"), renewed_s + silent_s
    fleet.excuse(late_s, now)
    until_s = fleet.alive_until("e1", "n1")
    assert before_s <= until_s <= max(before_s, min(before_s + late_s, now + 0.5))
    assert not fleet.engine_alive("e1", now + 0.5 + 1e-6) or before_s > now + 0.5


def test_a_replaced_process_is_fenced(fleet: Fleet) -> None:
    fleet.put_engine(engine("1", "i2"), 0.0)
    with pytest.raises(Fenced) as caught:
        fleet.renew_engine("e1", "i1", (), 0.1)
    assert caught.value.reason == "INCARNATION_REPLACED"
    fleet.put_node(node("1", "j2"), 0.0)
    with pytest.raises(Fenced):
        fleet.renew_node("n1", "j1", Counter(), 0.1)
    with pytest.raises(NotFound):
        fleet.renew_node("nobody", "j1", Counter(), 0.1)
    with pytest.raises(NotFound):
        fleet.renew_engine("nobody", "i1", (), 0.1)


def test_gone_is_replaced_or_silent(fleet: Fleet) -> None:
    party = fleet.party("e1")
    assert party == Party("e1", "i1", "n1", "j1")
    assert not fleet.engine_gone(party, 0.4)
    assert fleet.engine_gone(party, 0.5)
    assert not fleet.mover_gone(party, 0.9)
    assert fleet.mover_gone(party, 1.0)
    fleet.put_engine(engine("1", "i2"), 1.0)
    fleet.put_node(node("1", "j2"), 1.0)
    assert fleet.engine_gone(party, 1.0)
    assert fleet.mover_gone(party, 1.0)


def test_an_open_move_holds_a_slot_at_both_ends(fleet: Fleet) -> None:
    here = session(state=SessionState.MOVING)
    move = entry().move
    both = {("n1", "cpu"): 1, ("n2", "cpu"): 1}
    assert fleet.slots_used((here,), (move,)) == both
    after = session(owner="e2", node_id="n2", state=SessionState.MOVING)
    committed = replace(move, phase=MovePhase.COMMITTED)
    assert fleet.slots_used((after,), (committed,)) == both
    # Neither is to come any more: the session is at its target, its old slot still taken.
    kept = [one.slots_for_moves for one in fleet.candidates((after,), (committed,), 0.1)]
    assert kept == [3, 3]
    fleet.renew_node("n1", "j1", Counter(cpu=2), 0.0)
    assert fleet.slots_used((here,), ()) == {("n1", "cpu"): 3}


def test_a_slot_that_was_released_is_free_whatever_a_report_says(fleet: Fleet) -> None:
    """A planner that prunes branches has their slots for the next ones at once."""
    told: list[str] = []
    fleet.on_change(told.append)
    first, second, stuck = (SlotName("n1", index, 1) for index in range(3))
    live = {first: "cpu", second: "cpu"}
    used = ("n1", "cpu")
    fleet.renew_node("n1", "j1", Counter(cpu=3), 0.0, live)
    assert fleet.slots_used((), ())[used] == 3
    told.clear()
    fleet.slot_released(first)
    assert (fleet.slots_used((), ())[used], told) == (2, ["n1"])
    # Twice, of another node, or in quarantine: nothing is counted off.
    for slot in (first, SlotName("n2", 0, 1), stuck):
        fleet.slot_released(slot)
    assert (fleet.slots_used((), ())[used], told) == (2, ["n1"])
    # A report that was on its way meanwhile, and its slot's next use.
    fleet.renew_node("n1", "j1", Counter(cpu=3), 0.0, live)
    assert fleet.slots_used((), ())[used] == 2
    fleet.renew_node("n1", "j1", Counter(cpu=1), 0.0, {SlotName("n1", 0, 2): "cpu"})
    assert fleet.slots_used((), ())[used] == 1
    for index in range(RELEASED_MAX + 1):
        fleet.slot_released(SlotName("n2", 0, index + 1))
    assert len(fleet._released) == RELEASED_MAX


def test_the_snapshot_says_what_choices_need(fleet: Fleet) -> None:
    first, second = fleet.candidates((session(),), (entry().move,), 0.1)
    assert (first.engine_id, first.slots_free, first.slots_for_moves) == ("e1", 3, 3)
    # What the move takes at its target is admission's to count, for other moves.
    assert (second.engine_id, second.slots_free, second.slots_for_moves) == ("e2", 3, 4)
    assert first.alive
    assert not any(one.alive for one in fleet.candidates((), (), 0.5))


def test_utilization_counts_sessions_with_a_period(fleet: Fleet) -> None:
    fleet.renew_engine("e1", "i1", [row("tiny", 25.0)], 0.0)
    paced = session(contract=contract(period_ms=400.0))
    lost = session(contract=contract(period_ms=400.0), state=SessionState.LOST)
    elsewhere = session(owner="e2", node_id="n2", contract=contract(period_ms=400.0))
    sessions = (paced, paced, session(), lost, elsewhere)
    shares = [one.utilization for one in fleet.candidates(sessions, (), 0.1)]
    assert shares == pytest.approx([0.5, 0.0]), "of the second nothing is measured"


def test_utilization_is_at_the_quality_floor(fleet: Fleet) -> None:
    fleet.renew_engine("e1", "i1", [row("tiny", 25.0)], 0.0)
    floored = session(contract=contract(period_ms=400.0, quality_floor_steps=1))
    capped = session(
        contract=contract(period_ms=400.0, quality_floor_steps=1, degraded_consecutive_max=2)
    )
    shares = [
        fleet.candidates((one,), (), 0.1)[0].utilization for one in (floored, capped, session())
    ]
    assert shares == pytest.approx([50 / 400, 100 / 400, 0.0])


def test_a_row_ages_from_when_it_was_told(fleet: Fleet) -> None:
    fleet.renew_engine("e1", "i1", [row("tiny", age_ms=40.0), row("mg2")], 1.0)
    assert [one.age_ms for one in fleet.rows("e1", 1.0)] == [0.0, 40.0]
    assert [one.age_ms for one in fleet.rows("e1", 3.5)] == [2_500.0, 2_540.0]
    assert fleet.rows("e2", 1.0) == ()


def test_a_row_that_its_engine_leaves_out_is_gone(fleet: Fleet) -> None:
    """It has grown too old there, or the engine has been bound elsewhere."""
    fleet.renew_engine("e1", "i1", [row("tiny"), row("mg2")], 0.0)
    fleet.renew_engine("e1", "i1", [row("mg2")], 0.1)
    assert [one.shape.preset for one in fleet.rows("e1", 0.1)] == ["mg2"]


def test_the_next_process_begins_without_rows(fleet: Fleet) -> None:
    fleet.renew_engine("e1", "i1", [row("tiny")], 0.0)
    fleet.put_engine(engine("1", "i2"), 0.1)
    assert fleet.rows("e1", 0.1) == ()
    fleet.put_row("e1", "i1", row("tiny"), 0.2)
    assert fleet.rows("e1", 0.2) == (), "measured by the process before"
    fleet.put_row("e1", "i2", row("tiny"), 0.2)
    assert [one.shape.preset for one in fleet.rows("e1", 0.2)] == ["tiny"]
    fleet.put_row("nobody", "i2", row("tiny"), 0.2)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_an_address_can_be_dialled(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        address(text, "mover_address")
    assert caught.value.field == "mover_address"


@pytest.mark.parametrize("text", ["host:1", "127.0.0.1:65535", "[::1]:80", "unix:/run/x"])
def test_a_good_address_is_kept(text: str) -> None:
    assert address(text, "mover_address") == text
