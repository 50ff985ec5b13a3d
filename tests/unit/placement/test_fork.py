"""Forks as decisions and on record: all branches or none, and no number twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.placement import branch_table, node_table, session_table
from services.placement.branch_table import MadeBranch
from services.placement.fork import (
    BRANCHES_MAX,
    ForkWish,
    check_parent,
    no_room_for,
    plan_branches,
    same_request,
)
from services.placement.forked import (
    BRANCH_NUMBER_MAX,
    ForkedFrom,
    forked_from_json,
    forked_to_json,
)
from services.placement.records import SessionRecord, SessionState
from services.placement.schema import open_directory
from services.placement.values import SlotName
from tests.unit.placement.makers import contract, engine, node, session
from worldline.errors import Conflict, InvalidInput, InvariantBroken, Unavailable
from worldline.verdict import RejectReason, Verdict

PARENT = session(extent_bytes=2048, epoch=3)


def wish(count: int = 2, **facts: Any) -> ForkWish:
    given: dict[str, Any] = {
        "session_id": "s",
        "count": count,
        "contract": None,
        "same_noise": False,
        "first_branch": None,
        "idempotency_key": "",
        "client_id": "c",
    }
    return ForkWish(**given | facts)


def planned(asked: ForkWish, lowest: int = 0, stem: str = "b") -> tuple[SessionRecord, ...]:
    names = [f"{stem}{index}" for index in range(asked.count)]
    return plan_branches(PARENT, asked, names, lowest)


# --- decisions ---------------------------------------------------------------------------------


def test_branches_are_sessions_where_their_parent_is() -> None:
    first, second = planned(wish(), lowest=5)
    assert (first.owner, first.owner_incarnation, first.node_id) == ("e1", "i1", "n1")
    assert (first.epoch, first.state, first.slot) == (1, SessionState.OPENING, None)
    assert (first.contract, first.world) == (PARENT.contract, PARENT.world)
    assert first.takes_slot
    assert first.forked_from == ForkedFrom("s", 3, 5)
    assert second.forked_from == ForkedFrom("s", 3, 6)
    assert first.idempotency_key == second.idempotency_key == ""


def test_a_client_may_ask_for_a_contract_numbers_and_the_same_noise() -> None:
    other = contract(horizon_ms=9.0)
    asked = wish(contract=other, first_branch=7, same_noise=True, idempotency_key="k")
    branches = planned(asked, lowest=100)
    assert [one.forked_from for one in branches] == [
        ForkedFrom("s", 3, 7, True),
        ForkedFrom("s", 3, 8, True),
    ]
    assert {one.contract for one in branches} == {other}
    assert [one.idempotency_key for one in branches] == ["k 0", "k 1"]


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"count": 0}, "count"),
        ({"count": BRANCHES_MAX + 1}, "count"),
        ({"session_id": ""}, "session_id"),
        ({"first_branch": -1}, "first_branch"),
        ({"first_branch": BRANCH_NUMBER_MAX, "count": 2}, "first_branch"),
    ],
)
def test_a_bad_wish_names_the_field(facts: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wish(**facts)
    assert caught.value.field == field


def test_the_last_number_is_used_and_none_after_it() -> None:
    (last,) = planned(wish(1, first_branch=BRANCH_NUMBER_MAX))
    assert last.forked_from == ForkedFrom("s", 3, BRANCH_NUMBER_MAX)
    with pytest.raises(InvalidInput):
        planned(wish(1), lowest=BRANCH_NUMBER_MAX + 1)


@pytest.mark.parametrize("state", set(SessionState) - {SessionState.LIVE})
def test_only_a_live_session_is_forked(state: SessionState) -> None:
    check_parent(PARENT)
    with pytest.raises(Conflict) as caught:
        check_parent(replace(PARENT, state=state))
    assert state.value in caught.value.message
    assert caught.value.field == "session_id"
    moving = {"moving": "MOVE", "suspending": "SUSPEND", "resuming": "RESUME"}
    word = moving.get(state.value)
    expected = f"{word}_IN_PROGRESS" if word else f"SESSION_{state.name}"
    assert caught.value.reason == expected


def test_a_reject_says_for_how_many_there_is_room() -> None:
    no = Verdict.reject(RejectReason.DEVICE_FULL, "all 4 slots", {"slots_total": 4.0}, 700)
    told = no_room_for(no, 1, wish(3))
    assert (told.reason, told.retry_after_ms) == (no.reason, 700)
    assert told.explanation == "3 branches of session s, room for 1: all 4 slots"
    assert told.numbers == {"slots_total": 4.0, "branches": 3.0, "branches_with_room": 1.0}
    assert no_room_for(no, 0, wish(1)).explanation.startswith("1 branch of session s, room for 0")
    yes = Verdict.admit("room")
    assert no_room_for(yes, 1, wish(3)) is yes


def live(branches: tuple[SessionRecord, ...]) -> tuple[SessionRecord, ...]:
    return tuple(replace(one, state=SessionState.LIVE) for one in branches)


def test_a_request_that_comes_again_finds_its_branches() -> None:
    asked = wish(idempotency_key="k", first_branch=4)
    branches = live(planned(asked))
    assert same_request(branches, asked) == branches
    assert same_request(branches, replace(asked, first_branch=None)) == branches


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 1},
        {"count": 3},
        {"session_id": "t"},
        {"same_noise": True},
        {"first_branch": 5},
        {"contract": contract(horizon_ms=9.0)},
    ],
)
def test_a_key_that_was_used_for_another_fork(changes: dict[str, Any]) -> None:
    asked = wish(idempotency_key="k", first_branch=4)
    with pytest.raises(Conflict) as caught:
        same_request(live(planned(asked)), replace(asked, **changes))
    assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"


def test_what_a_restart_left_is_being_undone() -> None:
    asked = wish(idempotency_key="k")
    branches = planned(asked)
    with pytest.raises(Unavailable) as caught:
        same_request((*live(branches[:1]), *branches[1:]), asked)
    assert caught.value.reason == "SESSION_OPENING"
    assert caught.value.retry_after_ms


# --- on record ---------------------------------------------------------------------------------

forked_froms = st.builds(
    ForkedFrom,
    st.text("abc-", min_size=1, max_size=8),
    st.integers(1, 2**63 - 1),
    st.integers(0, BRANCH_NUMBER_MAX),
    st.booleans(),
    st.none() | st.integers(0, 2**63 - 1),
    st.booleans(),
)


@given(forked_froms)
def test_the_durable_form_gives_it_back(forked: ForkedFrom) -> None:
    assert forked_from_json(forked_to_json(forked)) == forked
    assert forked_from_json(forked_to_json(None)) is None


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_directory(str(tmp_path / "directory.db"))
    connection.row_factory = sqlite3.Row
    node_table.put_node(connection, node("1"))
    node_table.put_engine(connection, engine("1"))
    session_table.insert_session(connection, PARENT)
    yield connection
    connection.close()


def inserted(
    db: sqlite3.Connection, asked: ForkWish, stem: str = "b", parent: SessionRecord = PARENT
) -> tuple[SessionRecord, ...] | None:
    return branch_table.insert_branches(db, parent, lambda lowest: planned(asked, lowest, stem))


def made(name: str, slot_index: int) -> MadeBranch:
    return MadeBranch(name, SlotName("n1", slot_index, 1), b"layout", b"\2" * 32, 2048)


def numbers(branches: tuple[SessionRecord, ...] | None) -> list[int]:
    assert branches is not None
    return [one.forked_from.branch for one in branches if one.forked_from is not None]


def test_numbers_go_on_whatever_became_of_the_branches(db: sqlite3.Connection) -> None:
    assert numbers(inserted(db, wish(2))) == [0, 1]
    opening = (SessionState.OPENING,)
    session_table.set_state(db, "b1", opening, SessionState.CLOSED)
    assert numbers(inserted(db, wish(1), "c")) == [2]
    assert numbers(inserted(db, wish(1, first_branch=9), "d")) == [9]
    assert numbers(inserted(db, wish(2), "e")) == [10, 11]
    # A branch of a branch is counted at its own parent.
    assert session_table.get_session(db, "b1") == replace(
        planned(wish(2))[1], state=SessionState.CLOSED
    )


def test_the_numbers_of_a_refused_fork_are_given_out_again(db: sqlite3.Connection) -> None:
    opening = (SessionState.OPENING,)
    assert numbers(inserted(db, wish(2))) == [0, 1]
    # Not before they are closed, and not of one that lives.
    branch_table.return_numbers(db, ["b0"])
    assert numbers(inserted(db, wish(1), "c")) == [2]
    for name in ("b0", "b1"):
        session_table.set_state(db, name, opening, SessionState.CLOSED)
    branch_table.return_numbers(db, ["b0", "b1"])
    assert numbers(inserted(db, wish(1), "d")) == [3], "one above was taken meanwhile"
    for name in ("c0", "d0"):
        session_table.set_state(db, name, opening, SessionState.CLOSED)
    branch_table.return_numbers(db, ["c0", "d0"])
    assert numbers(inserted(db, wish(2), "e")) == [0, 1]
    assert branch_table.branches_made(db, (made("e0", 1), made("e1", 2)), 41) is not None
    for name in ("e0", "e1"):
        session_table.set_state(db, name, (SessionState.LIVE,), SessionState.CLOSED)
    branch_table.return_numbers(db, ["e0", "e1"])
    assert numbers(inserted(db, wish(1), "f")) == [2], "these have lived"


def test_a_branch_of_an_earlier_version_has_its_number(db: sqlite3.Connection) -> None:
    inserted(db, wish(2))
    db.execute("UPDATE sessions SET forked_from = json_remove(forked_from, '$.number_returned')")
    branch = session_table.get_session(db, "b1")
    assert branch is not None
    assert branch.forked_from == ForkedFrom("s", 3, 1)
    assert numbers(inserted(db, wish(1), "c")) == [2]


@pytest.mark.parametrize(
    "changes",
    [{"epoch": 2}, {"owner_incarnation": "i0"}, {"owner": "e9"}, {"session_id": "t"}],
)
def test_a_parent_that_changed_hands_has_no_branches(
    db: sqlite3.Connection, changes: dict[str, Any]
) -> None:
    assert inserted(db, wish(), parent=replace(PARENT, **changes)) is None
    session_table.set_state(db, "s", (SessionState.LIVE,), SessionState.MOVING)
    assert inserted(db, wish()) is None
    assert [one.session_id for one in session_table.sessions_now(db)] == ["s"]


def test_one_name_that_exists_and_no_branch_is_on_record(db: sqlite3.Connection) -> None:
    inserted(db, wish(1, idempotency_key="k"), "c")
    for asked, stem in ((wish(2, idempotency_key="k"), "b"), (wish(1), "c")):
        with pytest.raises(Conflict):
            inserted(db, asked, stem)
    assert [one.session_id for one in session_table.sessions_now(db)] == ["c0", "s"]


def test_branches_live_together(db: sqlite3.Connection) -> None:
    inserted(db, wish(2))
    both = (made("b0", 1), made("b1", 2))
    branches = branch_table.branches_made(db, both, 41)
    assert branches is not None
    assert branches == tuple(session_table.get_session(db, name) for name in ("b0", "b1"))
    assert [one.state for one in branches] == [SessionState.LIVE] * 2
    assert [one.slot for one in branches] == [SlotName("n1", 1, 1), SlotName("n1", 2, 1)]
    assert branches[1].forked_from == ForkedFrom("s", 3, 1, False, 41)
    assert (branches[0].layout, branches[0].extent_bytes) == (b"layout", 2048)


def test_one_that_was_closed_meanwhile_and_none_lives(db: sqlite3.Connection) -> None:
    inserted(db, wish(2))
    session_table.set_state(db, "b1", (SessionState.OPENING,), SessionState.CLOSED)
    assert branch_table.branches_made(db, (made("b0", 1), made("b1", 2)), 41) is None
    first = session_table.get_session(db, "b0")
    assert first is not None
    assert (first.state, first.slot) == (SessionState.OPENING, None)


def test_branches_are_found_by_their_request(db: sqlite3.Connection) -> None:
    asked = wish(2, idempotency_key="k")
    branches = inserted(db, asked)
    assert branch_table.branches_by_keys(db, asked.keys_possible) == branches
    assert branch_table.branches_by_keys(db, wish(idempotency_key="l").keys_possible) == ()
    assert len(asked.keys_possible) == len(set(asked.keys_possible)) == BRANCHES_MAX


def test_a_record_that_was_tampered_with(db: sqlite3.Connection) -> None:
    inserted(db, wish(1))
    for text in ('{"session_id": "s"}', "[]", "{"):
        db.execute("PRAGMA ignore_check_constraints=ON")
        db.execute("DROP INDEX IF EXISTS sessions_by_parent")
        db.execute("UPDATE sessions SET forked_from = ? WHERE session_id = 'b0'", (text,))
        with pytest.raises(InvariantBroken):
            session_table.get_session(db, "b0")
