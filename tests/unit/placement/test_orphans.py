"""Orphans: only what nobody can still claim is given away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.placement.orphans import OrphanWatch, SlotUse, find_orphans, foreign_slots
from services.placement.records import SessionState
from services.placement.values import SlotName
from tests.unit.placement.makers import entry, session

SLOT = SlotName("n1", 0, 1)
USE = SlotUse(SLOT, live=True, session_id="gone", age_ms=10_000)


def test_a_live_slot_of_no_session_is_an_orphan() -> None:
    assert find_orphans((USE,), (), (), 10_000) == (SLOT,)


def test_an_old_generation_of_a_moved_session_is_an_orphan() -> None:
    moved = session(node_id="n2", slot=SlotName("n2", 0, 1))
    assert find_orphans((replace(USE, session_id="s"),), (moved,), (), 0) == (SLOT,)
    newer = session(slot=replace(SLOT, generation=2))
    assert find_orphans((replace(USE, session_id="s"),), (newer,), (), 0) == (SLOT,)


@pytest.mark.parametrize("state", [SessionState.LIVE, SessionState.MOVING, SessionState.LOST])
def test_an_owned_slot_is_none(state: SessionState) -> None:
    owner = session(state=state, slot=SLOT)
    assert find_orphans((replace(USE, session_id="s"),), (owner,), (), 0) == ()


def test_a_young_slot_is_none() -> None:
    assert find_orphans((replace(USE, age_ms=9_999),), (), (), 10_000) == ()


def test_a_staged_slot_is_the_movers_own_to_reap() -> None:
    assert find_orphans((replace(USE, live=False),), (), (), 0) == ()


def test_a_session_that_opens_may_claim_it() -> None:
    opening = session(state=SessionState.OPENING, slot=None)
    assert find_orphans((replace(USE, session_id="s"),), (opening,), (), 0) == ()


def test_a_session_that_closes_may_still_write_there() -> None:
    assert find_orphans((USE,), (), (), 0, closing={"gone"}) == ()
    assert find_orphans((USE,), (), (), 0, closing={"other"}) == (SLOT,)


def test_it_must_have_been_nobodys_for_the_whole_grace() -> None:
    watch, elsewhere = OrphanWatch(10_000), SlotName("n2", 0, 1)
    assert watch.ripe("n1", (SLOT,), 100.0) == ()
    assert watch.ripe("n2", (elsewhere,), 105.0) == ()
    assert watch.ripe("n1", (SLOT,), 109.9) == ()
    assert watch.ripe("n1", (SLOT,), 110.0) == (SLOT,)
    # Somebody's in between, or of another generation: counted anew.
    assert watch.ripe("n1", (), 111.0) == ()
    assert watch.ripe("n1", (SLOT,), 112.0) == ()
    assert watch.ripe("n1", (replace(SLOT, generation=2),), 130.0) == ()
    assert watch.ripe("n2", (elsewhere,), 115.0) == (elsewhere,)


def test_an_open_move_may_claim_it() -> None:
    moved = session(node_id="n2", slot=SlotName("n2", 0, 1))
    use = replace(USE, session_id="s")
    assert find_orphans((use,), (moved,), (entry().move,), 0) == ()


def test_what_the_directory_counts_itself_is_not_foreign() -> None:
    uses = (
        replace(USE, session_id="s"),
        replace(USE, session_id="coming"),
        replace(USE, session_id="other", live=False),
    )
    moves = (entry(session_id="coming").move,)
    assert foreign_slots(uses, "n1", (session(),), moves) == uses[2:]
    assert foreign_slots(uses, "n2", (session(),), moves) == (uses[0], uses[2])
    gives_way = replace(uses[2], gives_way=True)
    assert foreign_slots((gives_way,), "n1", (session(),), moves) == ()
