"""Changes: what a reader who asks again and again has is what the directory has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.placement import move_table, node_table, session_table
from services.placement.changes import changes_since
from services.placement.directory import transaction
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import SessionRecord, SessionState
from services.placement.schema import open_directory
from services.placement.values import Party
from tests.unit.placement.makers import contract, engine, entry, node, session


def opened(path: Path) -> sqlite3.Connection:
    db = open_directory(str(path / "directory.db"))
    db.row_factory = sqlite3.Row
    return db


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = opened(tmp_path)
    for name in ("1", "2"):
        node_table.put_node(db, node(name))
        node_table.put_engine(db, engine(name))
    yield db
    db.close()


class Reader:
    """Keeps the sessions as it was told of them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.version = 0
        self.sessions: dict[str, SessionRecord] = {}
        self.moves: dict[str, Move] = {}

    def look(self) -> list[str]:
        changes = changes_since(self._db, self.version)
        assert changes.version >= self.version
        self.version = changes.version
        for one in changes.sessions:
            self.sessions.pop(one.session_id, None)
            if one.state is not SessionState.CLOSED:
                self.sessions[one.session_id] = one
        for move in changes.moves:
            self.moves.pop(move.move_id, None)
            if not move.phase.terminal:
                self.moves[move.move_id] = move
        is_open = [one.move for one in move_table.open_moves(self._db)]
        assert [_slots_of(one) for one in self.moves.values()] == [
            _slots_of(one) for one in is_open
        ]
        kept = [replace(one, layout=b"") for one in session_table.sessions_now(self._db)]
        assert sorted(self.sessions.values(), key=lambda one: one.session_id) == kept
        return [one.session_id for one in changes.sessions] + [one.move_id for one in changes.moves]


def _slots_of(move: Move) -> tuple[str, Party, bool]:
    return move.move_id, move.target, move.phase is MovePhase.COMMITTED


def test_each_change_is_told_once_whoever_made_it(db: sqlite3.Connection) -> None:
    reader = Reader(db)
    assert reader.look() == []
    for name in ("a", "b"):
        session_table.insert_session(db, session(session_id=name))
    assert reader.look() == ["a", "b"]
    assert reader.look() == []
    move = entry("m", "a")
    move_table.insert_move(db, move)
    assert reader.look() == ["a", "m"]
    # Which phase before the commit it is in changes nothing about slots.
    move_table.save_move(db, move.with_move(replace(move.move, phase=MovePhase.ADMITTED)))
    assert reader.look() == []
    elsewhere = replace(move.move, target=Party("e1", "i1", "n1", "j1"))
    move_table.save_target(db, move.with_move(elsewhere))
    assert reader.look() == ["m"]
    attached = move.with_move(replace(move.move, phase=MovePhase.ATTACHED))
    move_table.commit_move(db, attached, contract())
    assert reader.look() == ["a", "m"]
    session_table.set_state(db, "b", [SessionState.LIVE], SessionState.CLOSED)
    done = move.with_move(replace(move.move, phase=MovePhase.DONE))
    move_table.finish_move(db, done)
    # Once each, by its latest change, as it is now.
    assert reader.look() == ["b", "a", "m"]
    assert reader.sessions["a"].owner == "e2"
    assert "b" not in reader.sessions
    session_table.lose_sessions_of(db, "e2", "i1")
    assert reader.look() == ["a"]


def test_an_answer_that_is_lost_is_had_again(db: sqlite3.Connection) -> None:
    reader = Reader(db)
    session_table.insert_session(db, session())
    lost = changes_since(db, reader.version)
    assert [one.session_id for one in lost.sessions] == ["s"]
    assert reader.look() == ["s"]


def test_what_is_rolled_back_was_never_told(db: sqlite3.Connection) -> None:
    reader = Reader(db)
    session_table.insert_session(db, session())
    reader.look()
    with pytest.raises(RuntimeError), transaction(db, durable=True):
        db.execute("UPDATE sessions SET state = 'lost'")
        raise RuntimeError("given up")
    assert reader.look() == []


def test_a_directory_that_is_opened_again_tells_all_that_is_not_closed(
    db: sqlite3.Connection, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        session_table.insert_session(db, session(session_id=name))
    session_table.set_state(db, "a", [SessionState.LIVE], SessionState.CLOSED)
    move_table.insert_move(db, entry("m", "b"))
    db.close()
    again = opened(tmp_path)
    reader = Reader(again)
    assert reader.look() == ["b", "m"]
    # Numbers go on after what was told is forgotten.
    assert reader.look() == []
    session_table.set_state(again, "b", [SessionState.MOVING], SessionState.LOST)
    assert reader.look() == ["b"]
    again.close()


def test_layouts_are_left_out(db: sqlite3.Connection) -> None:
    session_table.insert_session(db, session(layout=b"long"))
    (told,) = changes_since(db, 0).sessions
    assert told == session(layout=b"")
