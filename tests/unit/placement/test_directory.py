"""The directory: one writer, one swap, and what is left after a crash."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.placement import move_table, node_table, session_table
from services.placement.directory import Directory, transaction
from services.placement.move_table import Busy, CommitRefused, Committed
from services.placement.phases import MovePhase
from services.placement.records import MoveEntry, SessionState
from services.placement.schema import SCHEMA_VERSION, open_directory
from services.placement.values import Failure
from tests.unit.placement.makers import contract, engine, entry, node, session
from worldline.contract import DeterminismTier
from worldline.errors import Conflict, InvalidInput, InvariantBroken, VersionSkew
from worldline.verdict import RejectReason, Verdict


def opened(path: Path) -> sqlite3.Connection:
    db = open_directory(str(path))
    db.row_factory = sqlite3.Row
    return db


def fill(db: sqlite3.Connection) -> None:
    for name in ("1", "2", "3"):
        node_table.put_node(db, node(name))
        node_table.put_engine(db, engine(name))
    session_table.insert_session(db, session())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "directory.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    connection = opened(path)
    fill(connection)
    yield connection
    connection.close()


def at(move: MoveEntry, phase: MovePhase, **changes: object) -> MoveEntry:
    return move.with_move(replace(move.move, phase=phase, **changes))  # type: ignore[arg-type]


def attached(db: sqlite3.Connection, made: MoveEntry) -> MoveEntry:
    assert move_table.insert_move(db, made) is made
    ready = at(made, MovePhase.ATTACHED)
    move_table.save_move(db, ready)
    return ready


def test_what_is_written_is_read_back(db: sqlite3.Connection) -> None:
    assert session_table.get_session(db, "s") == session()
    assert node_table.all_nodes(db) == [node("1"), node("2"), node("3")]
    assert node_table.all_engines(db) == [engine("1"), engine("2"), engine("3")]
    made = entry()
    move_table.insert_move(db, made)
    assert move_table.get_move(db, "m") == made
    assert session_table.get_session(db, "nobody") is None
    assert move_table.get_move(db, "nothing") is None


def test_commit_swaps_owner_epoch_slot_and_tier_at_once(db: sqlite3.Connection) -> None:
    ready = attached(db, entry())
    dropped = contract(determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE)
    assert move_table.commit_move(db, ready, dropped) == Committed(2)
    after = session_table.get_session(db, "s")
    assert after is not None
    assert (after.owner, after.epoch, after.node_id) == ("e2", 2, "n2")
    assert after.slot == ready.move.target_slot
    assert after.contract == dropped
    found = move_table.get_move(db, "m")
    assert found is not None
    assert found.move.phase is MovePhase.COMMITTED


def test_two_commits_race_and_one_wins(db: sqlite3.Connection) -> None:
    first = attached(db, entry("m1"))
    # A rival that believes the same epoch, forced past the guard on open moves.
    rival = at(entry("m2", target_slot=None), MovePhase.ATTACHED)
    assert isinstance(move_table.commit_move(db, rival, contract()), CommitRefused)
    assert session_table.get_session(db, "s") == session(state=SessionState.MOVING)
    assert move_table.commit_move(db, first, contract()) == Committed(2)
    answer = move_table.commit_move(db, rival, contract())
    assert isinstance(answer, CommitRefused)
    assert "epoch 1" in answer.explanation
    after = session_table.get_session(db, "s")
    assert after is not None
    assert (after.owner, after.epoch) == ("e2", 2)


def test_a_commit_asked_again_answers_the_same(db: sqlite3.Connection) -> None:
    ready = attached(db, entry())
    assert move_table.commit_move(db, ready, contract()) == Committed(2)
    assert move_table.commit_move(db, ready, contract()) == Committed(2)
    move_table.save_move(db, at(ready, MovePhase.COMMITTED))
    move_table.finish_move(db, at(ready, MovePhase.DONE))
    assert move_table.commit_move(db, ready, contract()) == Committed(2)
    after = session_table.get_session(db, "s")
    assert after is not None
    assert (after.epoch, after.state) == (2, SessionState.LIVE)


def test_a_move_that_is_not_attached_cannot_commit(db: sqlite3.Connection) -> None:
    made = entry()
    move_table.insert_move(db, made)
    assert isinstance(move_table.commit_move(db, made, contract()), CommitRefused)
    after = session_table.get_session(db, "s")
    assert after is not None
    assert (after.owner, after.epoch) == ("e1", 1)


def test_a_commit_does_not_wait_for_the_phases_before_it(db: sqlite3.Connection) -> None:
    made = entry()
    move_table.insert_move(db, made)
    assert move_table.commit_move(db, at(made, MovePhase.ATTACHED), contract()) == Committed(2)


@pytest.mark.parametrize("phase", [MovePhase.ROLLING_BACK, MovePhase.ABORTED])
def test_a_move_that_was_given_up_cannot_commit(db: sqlite3.Connection, phase: MovePhase) -> None:
    ready = attached(db, entry())
    write = move_table.finish_move if phase.terminal else move_table.save_move
    write(db, at(ready, phase))
    assert isinstance(move_table.commit_move(db, ready, contract()), CommitRefused)
    after = session_table.get_session(db, "s")
    assert after is not None
    assert (after.owner, after.epoch) == ("e1", 1)


@pytest.mark.parametrize("state", [SessionState.LIVE, SessionState.CLOSED, SessionState.LOST])
def test_a_session_that_stopped_moving_cannot_commit(
    db: sqlite3.Connection, state: SessionState
) -> None:
    ready = attached(db, entry())
    session_table.set_state(db, "s", (SessionState.MOVING,), state)
    assert isinstance(move_table.commit_move(db, ready, contract()), CommitRefused)
    found = move_table.get_move(db, "m")
    assert found is not None
    assert found.move.phase is MovePhase.ATTACHED


@pytest.mark.parametrize("change", ["epoch = 3", "owner = 'e3'"])
def test_an_owner_or_an_epoch_of_another_time_cannot_commit(
    db: sqlite3.Connection, change: str
) -> None:
    """ABA: away and back again is the same owner in a later epoch."""
    ready = attached(db, entry())
    db.execute(f"UPDATE sessions SET {change}")  # noqa: S608 - a constant of this test
    before = session_table.get_session(db, "s")
    assert isinstance(move_table.commit_move(db, ready, contract()), CommitRefused)
    assert session_table.get_session(db, "s") == before


@pytest.mark.parametrize("which", ["engine", "node"])
def test_a_target_that_was_replaced_is_given_nothing(db: sqlite3.Connection, which: str) -> None:
    """Its next process has another's name and not the copy; the source still has the world."""
    ready = attached(db, entry())
    if which == "engine":
        node_table.put_engine(db, engine("2", "i2"))
    else:
        node_table.put_node(db, node("2", "j2"))
    answer = move_table.commit_move(db, ready, contract())
    assert isinstance(answer, CommitRefused)
    assert f"{which[0]}2 was replaced" in answer.explanation
    assert session_table.get_session(db, "s") == session(state=SessionState.MOVING)


def test_after_a_commit_nothing_takes_the_move_back(db: sqlite3.Connection) -> None:
    ready = attached(db, entry())
    move_table.commit_move(db, ready, contract())
    for phase in (MovePhase.ATTACHED, MovePhase.ROLLING_BACK):
        with pytest.raises(InvariantBroken):
            move_table.save_move(db, at(ready, phase))
    with pytest.raises(InvariantBroken):
        move_table.finish_move(db, at(ready, MovePhase.ABORTED))


def test_before_a_commit_nothing_ends_as_done(db: sqlite3.Connection) -> None:
    ready = attached(db, entry())
    with pytest.raises(InvariantBroken):
        move_table.finish_move(db, at(ready, MovePhase.DONE))
    with pytest.raises(InvariantBroken):
        move_table.save_move(db, at(ready, MovePhase.COMMITTED))


def test_one_open_move_per_session(db: sqlite3.Connection) -> None:
    move_table.insert_move(db, entry("m1"))
    assert move_table.insert_move(db, entry("m2")) == Busy("moving")
    assert move_table.get_move(db, "m2") is None
    failed = at(entry("m1"), MovePhase.ABORTED, failure=Failure("Conflict", "GONE", "gone"))
    move_table.finish_move(db, failed)
    again = entry("m2")
    assert move_table.insert_move(db, again) is again
    # The index holds even where the session's state was tampered with.
    db.execute("UPDATE sessions SET state = 'live'")
    with pytest.raises(sqlite3.IntegrityError):
        move_table.insert_move(db, entry("m3"))


def test_a_move_id_never_overwrites(db: sqlite3.Connection) -> None:
    move_table.insert_move(db, entry("m1"))
    move_table.finish_move(db, at(entry("m1"), MovePhase.ABORTED))
    with pytest.raises(sqlite3.IntegrityError):
        move_table.insert_move(db, entry("m1"))
    # The session that the failed insert had taken was given back with it.
    after = session_table.get_session(db, "s")
    assert after is not None
    assert after.state is SessionState.LIVE


def test_an_idempotency_key_returns_the_earlier_move(db: sqlite3.Connection) -> None:
    first = replace(entry("m1"), idempotency_key="k")
    move_table.insert_move(db, first)
    assert move_table.insert_move(db, replace(entry("m2"), idempotency_key="k")) == first


def test_session_ids_and_keys_never_overwrite(db: sqlite3.Connection) -> None:
    with pytest.raises(Conflict):
        session_table.insert_session(db, session(epoch=9))
    assert session_table.get_session(db, "s") == session()
    session_table.insert_session(db, session(session_id="a", idempotency_key="k"))
    with pytest.raises(Conflict):
        session_table.insert_session(db, session(session_id="b", idempotency_key="k"))
    session_table.set_state(db, "a", (SessionState.LIVE,), SessionState.CLOSED)
    session_table.insert_session(db, session(session_id="b", idempotency_key="k"))


@pytest.mark.parametrize(("lost", "state"), [(False, SessionState.LIVE), (True, SessionState.LOST)])
def test_the_end_of_a_move_frees_its_session(
    db: sqlite3.Connection, lost: bool, state: SessionState
) -> None:
    move_table.insert_move(db, entry())
    move_table.finish_move(db, at(entry(), MovePhase.ABORTED, lost=lost))
    after = session_table.get_session(db, "s")
    assert after is not None
    assert after.state is state
    assert move_table.open_moves(db) == []


def test_outcomes_add_up(db: sqlite3.Connection) -> None:
    rejected = at(
        entry("m1"), MovePhase.REJECTED, verdict=Verdict.reject(RejectReason.NO_TARGET, "no")
    )
    move_table.insert_move(db, rejected)
    move_table.insert_move(db, entry("m2"))
    failure = Failure("IntegrityError", "DIGEST_MISMATCH", "differs", "kv[0].k", 5)
    move_table.finish_move(db, at(entry("m2"), MovePhase.ABORTED, failure=failure))
    ready = attached(db, entry("m3"))
    move_table.commit_move(db, ready, contract())
    move_table.finish_move(db, at(ready, MovePhase.DONE))
    assert move_table.count_outcomes(db) == {
        "rejected:NO_TARGET": 1,
        "aborted:DIGEST_MISMATCH": 1,
        "committed": 1,
    }
    listed = move_table.list_moves(db, "s", 2)
    assert [one.move.move_id for one in listed] == ["m3", "m2"]
    assert move_table.list_moves(db, "t", 2) == []


def test_a_new_incarnation_loses_the_sessions_of_the_old(db: sqlite3.Connection) -> None:
    session_table.insert_session(db, session(session_id="t", state=SessionState.MOVING))
    assert node_table.put_engine(db, engine("1")) == 0
    assert node_table.put_engine(db, engine("1", "i2")) == 1
    states = {one.session_id: one.state for one in session_table.sessions_now(db)}
    assert states == {"s": SessionState.LOST, "t": SessionState.MOVING}
    # The old process cannot come back for them, the moving one is caught when its move ends.
    assert session_table.revive_sessions_of(db, "e1", "i2") == 0
    session_table.set_state(db, "t", (SessionState.MOVING,), SessionState.LIVE)
    assert session_table.lose_strays(db) == 1


def test_a_paused_engine_gets_its_sessions_back(db: sqlite3.Connection) -> None:
    assert session_table.lose_sessions_of(db, "e1", "i1") == 1
    assert session_table.lose_sessions_of(db, "e1", "i1") == 0
    assert session_table.revive_sessions_of(db, "e1", "i1") == 1
    assert session_table.get_session(db, "s") == session()


def test_paths_are_smoothed(db: sqlite3.Connection) -> None:
    node_table.note_path(db, "n1", "n2", 800.0, 8.0)
    before_unix_s = time.time()
    node_table.note_path(db, "n1", "n2", 1600.0, 16.0)
    (found,) = node_table.latest_paths(db, 10)
    assert (found.rate_bytes_per_s, found.setup_ms, found.samples) == (900.0, 9.0, 2)
    assert found.changed_unix_s >= before_unix_s


def test_the_paths_used_last_come_first(db: sqlite3.Connection) -> None:
    for target in ("n2", "n3", "n4"):
        node_table.note_path(db, "n1", target, 800.0, 8.0)
    found = node_table.latest_paths(db, 2)
    assert [one.target_node_id for one in found] == ["n4", "n3"]


def test_a_crash_in_the_swap_leaves_all_or_nothing(path: Path) -> None:
    db = opened(path)
    fill(db)
    ready = attached(db, entry())
    # The process dies between the two statements of the transaction.
    with pytest.raises(RuntimeError), transaction(db, durable=True):
        db.execute("UPDATE sessions SET owner = 'e2', epoch = 2")
        raise RuntimeError("power cut")
    db.close()
    again = opened(path)
    found = session_table.get_session(again, "s")
    assert found is not None
    assert (found.owner, found.epoch) == ("e1", 1)
    (left,) = move_table.open_moves(again)
    assert left.move.phase is MovePhase.ATTACHED
    assert move_table.commit_move(again, ready, contract()) == Committed(2)
    again.close()


def test_the_log_of_a_killed_process_is_recovered(path: Path, tmp_path: Path) -> None:
    db = opened(path)
    fill(db)
    move_table.commit_move(db, attached(db, entry()), contract())
    # What a kill leaves on the disk: the file as it was, and the write-ahead log beside it.
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    log = Path(f"{path}-wal")
    assert log.stat().st_size > 0
    Path(f"{copy}-wal").write_bytes(log.read_bytes())
    recovered = opened(copy)
    found = session_table.get_session(recovered, "s")
    assert found is not None
    assert (found.owner, found.epoch) == ("e2", 2)
    recovered.close()
    db.close()


def test_the_directory_is_in_wal_mode_and_flushes_commits(db: sqlite3.Connection) -> None:
    assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    with transaction(db, durable=True):
        pass
    assert db.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_a_second_writer_is_refused(path: Path) -> None:
    db = opened(path)
    with pytest.raises(Conflict) as caught:
        open_directory(str(path))
    assert caught.value.reason == "DIRECTORY_LOCKED"
    assert caught.value.field == "directory_path"
    db.close()


def test_an_unknown_schema_is_refused(path: Path) -> None:
    db = opened(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(VersionSkew) as caught:
        open_directory(str(path))
    assert caught.value.reason == "DIRECTORY_SCHEMA_UNKNOWN"


def test_a_foreign_database_is_refused(path: Path) -> None:
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE something (x)")
    foreign.commit()
    foreign.close()
    with pytest.raises(VersionSkew):
        open_directory(str(path))


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough" * 30])
def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        open_directory(str(path))
    assert caught.value.field == "directory_path"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        open_directory(str(tmp_path / "nowhere" / "directory.db"))


def test_a_record_that_does_not_parse_is_our_bug(db: sqlite3.Connection) -> None:
    move_table.insert_move(db, entry())
    db.execute("UPDATE moves SET facts = '{}'")
    with pytest.raises(InvariantBroken, match="move m"):
        move_table.get_move(db, "m")
    db.execute("UPDATE sessions SET contract = x'ff'")
    with pytest.raises(InvariantBroken, match="session s"):
        session_table.get_session(db, "s")


async def test_the_file_opens_on_the_writers_thread(path: Path) -> None:
    directory = Directory(str(path))
    await directory.open()
    await directory.do(fill)
    assert await directory.do(session_table.get_session, "s") == session()
    await directory.close()
    with pytest.raises(RuntimeError, match="not open"):
        await directory.do(session_table.sessions_now)


class Refusing(sqlite3.Connection):
    """A connection whose next COMMIT fails and leaves its transaction open."""

    refusals = 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.refusals:
            self.refusals -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


def test_a_commit_that_fails_is_not_read_back_as_done(path: Path) -> None:
    opened(path).close()
    db = sqlite3.connect(path, isolation_level=None, factory=Refusing)
    db.row_factory = sqlite3.Row
    fill(db)
    ready = attached(db, entry())
    db.refusals = 1
    with pytest.raises(sqlite3.OperationalError):
        move_table.commit_move(db, ready, contract())
    found = move_table.get_move(db, ready.move.move_id)
    assert found is not None
    assert found.move.phase is MovePhase.ATTACHED
    assert isinstance(move_table.commit_move(db, ready, contract()), Committed)
    db.close()
