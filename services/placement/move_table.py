"""Moves in the directory, and the one compare-and-swap that changes a session's owner."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass, replace

from services.placement.directory import transaction
from services.placement.move_facts import entry_from_row, facts_to_json, slot_to_list
from services.placement.phases import MovePhase
from services.placement.records import MoveEntry, SessionState
from services.placement.values import Party
from worldline.contract import Contract, contract_to_proto
from worldline.errors import InvariantBroken


@dataclass(frozen=True, slots=True)
class Committed:
    """The target owns the session in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """The swap did not happen: somebody else changed the session or the move first."""

    explanation: str


@dataclass(frozen=True, slots=True)
class Busy:
    """The session cannot begin a move now; `state` says where it stands."""

    state: str


class _Lost(Exception):
    """Leaves the transaction; never leaves this module."""


def insert_move(db: sqlite3.Connection, entry: MoveEntry) -> MoveEntry | Busy:
    """A new move. An earlier one with the same idempotency key is returned instead.

    An open move takes the session from LIVE to MOVING in the same transaction; a move that is
    born rejected leaves the session alone.
    """
    move = entry.move
    earlier = move_by_key(db, entry.idempotency_key) if entry.idempotency_key else None
    if earlier is not None:
        return earlier
    try:
        with transaction(db, durable=True):
            if not move.phase.terminal:
                _take_session(db, entry)
            db.execute(
                "INSERT INTO moves (move_id, session_id, source_engine_id, target_engine_id,"
                " source_epoch, phase, is_open, outcome, facts, trace_id, idempotency_key,"
                " changed_unix_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    move.move_id,
                    move.session_id,
                    move.source.engine_id,
                    move.target.engine_id,
                    move.source_epoch,
                    int(move.phase),
                    int(not move.phase.terminal),
                    outcome_label(entry),
                    facts_to_json(entry),
                    entry.trace_id,
                    entry.idempotency_key or None,
                    time.time(),
                ),
            )
    except _Lost as lost:
        return Busy(str(lost))
    return entry


def _take_session(db: sqlite3.Connection, entry: MoveEntry) -> None:
    move = entry.move
    taken = db.execute(
        "UPDATE sessions SET state = ? WHERE session_id = ? AND owner = ? AND epoch = ?"
        " AND state = ?",
        (
            SessionState.MOVING.value,
            move.session_id,
            move.source.engine_id,
            move.source_epoch,
            SessionState.LIVE.value,
        ),
    ).rowcount
    if taken != 1:
        row = db.execute(
            "SELECT state FROM sessions WHERE session_id = ?", (move.session_id,)
        ).fetchone()
        raise _Lost("unknown" if row is None else row["state"])


def save_move(db: sqlite3.Connection, entry: MoveEntry) -> None:
    """Make the phase of an open move durable. COMMITTED and the ends have their own functions.

    Raises:
        InvariantBroken: the move is not open, or already committed and this would undo it.
    """
    if entry.move.phase.terminal:
        raise InvariantBroken("a move ends through finish_move")
    committed = entry.move.phase is MovePhase.COMMITTED
    with transaction(db, durable=False):
        _write(db, entry, "= ?" if committed else "<> ?", (int(MovePhase.COMMITTED),), is_open=True)


def save_target(db: sqlite3.Connection, entry: MoveEntry) -> None:
    """Make durable to which target admission let the move go, before anything is asked of it there.

    Raises:
        InvariantBroken: the move is not open, or already committed.
    """
    with transaction(db, durable=True):
        _write(db, entry, "< ?", (int(MovePhase.COMMITTED),), is_open=True)


def commit_move(
    db: sqlite3.Connection, entry: MoveEntry, contract: Contract
) -> Committed | CommitRefused:
    """The compare-and-swap: (owner, epoch) to (target, epoch + 1), and the move COMMITTED.

    `contract` is the session's from now on (a T0 session may have dropped to T1). Refused where
    the move is not ATTACHED, whatever phase before that is on record yet, or is given up; and where
    the target's engine or mover is no longer the process that the move began with. Asking again
    for a move that has committed answers `Committed` again.
    """
    move = entry.move
    if move.phase is not MovePhase.ATTACHED:
        return CommitRefused(f"move {move.move_id} is {move.phase.name}, not attached")
    found = db.execute("SELECT phase FROM moves WHERE move_id = ?", (move.move_id,)).fetchone()
    if found is not None and found["phase"] in (MovePhase.COMMITTED, MovePhase.DONE):
        return Committed(move.source_epoch + 1)
    try:
        with transaction(db, durable=True):
            _check_target(db, move.target)
            _swap_owner(db, entry, contract)
            _write(
                db,
                entry.with_move(replace(move, phase=MovePhase.COMMITTED)),
                "<= ?",
                (int(MovePhase.ATTACHED),),
                is_open=True,
            )
    except (_Lost, InvariantBroken) as lost:
        return CommitRefused(str(lost))
    return Committed(move.source_epoch + 1)


def _check_target(db: sqlite3.Connection, target: Party) -> None:
    """The processes that hold the copy must be those of now: a later one has not got it."""
    for table, key, name, incarnation in (
        ("engines", "engine_id", target.engine_id, target.engine_incarnation),
        ("nodes", "node_id", target.node_id, target.node_incarnation),
    ):
        row = db.execute(
            f"SELECT incarnation FROM {table} WHERE {key} = ?",  # noqa: S608 - no input in it
            (name,),
        ).fetchone()
        if row is None or row["incarnation"] != incarnation:
            raise _Lost(f"{name} was replaced by another process since the move began")


def _swap_owner(db: sqlite3.Connection, entry: MoveEntry, contract: Contract) -> None:
    move = entry.move
    swapped = db.execute(
        "UPDATE sessions SET owner = ?, owner_incarnation = ?, node_id = ?, epoch = epoch + 1,"
        " slot = ?, contract = ? WHERE session_id = ? AND owner = ? AND epoch = ? AND state = ?",
        (
            move.target.engine_id,
            move.target.engine_incarnation,
            move.target.node_id,
            json.dumps(slot_to_list(move.target_slot)),
            contract_to_proto(contract).SerializeToString(deterministic=True),
            move.session_id,
            move.source.engine_id,
            move.source_epoch,
            SessionState.MOVING.value,
        ),
    ).rowcount
    if swapped != 1:
        raise _Lost(
            f"session {move.session_id} is no longer {move.source.engine_id}'s in epoch "
            f"{move.source_epoch}, or not moving"
        )


def finish_move(db: sqlite3.Connection, entry: MoveEntry) -> None:
    """The end of an open move; its session is LIVE again, or LOST when it runs nowhere.

    Raises:
        InvariantBroken: the phase is no end, the move is not open, or an abort would follow a
            commit.
    """
    move = entry.move
    if not move.phase.terminal:
        raise InvariantBroken(f"{move.phase.name} is no end of a move")
    after = SessionState.LOST if move.lost else SessionState.LIVE
    done = move.phase is MovePhase.DONE
    with transaction(db, durable=True):
        _write(db, entry, "= ?" if done else "<> ?", (int(MovePhase.COMMITTED),), is_open=False)
        db.execute(
            "UPDATE sessions SET state = ? WHERE session_id = ? AND state = ?",
            (after.value, move.session_id, SessionState.MOVING.value),
        )


def _write(
    db: sqlite3.Connection,
    entry: MoveEntry,
    phase_test: str,
    phase_values: tuple[int, ...],
    *,
    is_open: bool,
) -> None:
    move = entry.move
    written = db.execute(
        "UPDATE moves SET target_engine_id = ?, phase = ?, is_open = ?, outcome = ?, facts = ?,"  # noqa: S608
        " trace_id = ?, changed_unix_s = ? WHERE move_id = ? AND is_open = 1"
        f" AND phase {phase_test}",
        (
            move.target.engine_id,
            int(move.phase),
            int(is_open),
            outcome_label(entry),
            facts_to_json(entry),
            entry.trace_id,
            time.time(),
            move.move_id,
            *phase_values,
        ),
    ).rowcount
    if written != 1:
        raise InvariantBroken(f"move {move.move_id} is not open where {move.phase.name} follows")


def get_move(db: sqlite3.Connection, move_id: str) -> MoveEntry | None:
    """One move."""
    row = db.execute("SELECT * FROM moves WHERE move_id = ?", (move_id,)).fetchone()
    return None if row is None else entry_from_row(row)


def move_by_key(db: sqlite3.Connection, idempotency_key: str) -> MoveEntry | None:
    """The move that an earlier request with this key made."""
    row = db.execute("SELECT * FROM moves WHERE idempotency_key = ?", (idempotency_key,)).fetchone()
    return None if row is None else entry_from_row(row)


def open_moves(db: sqlite3.Connection) -> list[MoveEntry]:
    """Every move that has not ended, oldest first."""
    rows = db.execute("SELECT * FROM moves WHERE is_open = 1 ORDER BY sequence").fetchall()
    return [entry_from_row(row) for row in rows]


def list_moves(db: sqlite3.Connection, session_id: str, limit: int) -> list[MoveEntry]:
    """The newest moves first; of one session, or of all when it is empty."""
    rows = db.execute(
        "SELECT * FROM moves WHERE ? IN ('', session_id) ORDER BY sequence DESC LIMIT ?",
        (session_id, limit),
    ).fetchall()
    return [entry_from_row(row) for row in rows]


def count_outcomes(db: sqlite3.Connection) -> dict[str, int]:
    """Ended moves by `committed`, `aborted:REASON`, `rejected:REASON`."""
    rows = db.execute(
        "SELECT outcome, COUNT(*) AS moves FROM moves WHERE is_open = 0 GROUP BY outcome"
        " ORDER BY outcome"
    ).fetchall()
    return {row["outcome"]: row["moves"] for row in rows}


def outcome_label(entry: MoveEntry) -> str:
    """How an ended move is counted; empty while it is open."""
    if not entry.move.phase.terminal:
        return ""
    outcome, reason = outcome_of(entry)
    return f"{outcome}:{reason}" if reason else outcome


def outcome_of(entry: MoveEntry) -> tuple[str, str]:
    """(committed | aborted | rejected, reason or empty) of an ended move."""
    move = entry.move
    if move.phase is MovePhase.DONE:
        return "committed", ""
    if move.phase is MovePhase.REJECTED and move.verdict is not None:
        return "rejected", move.verdict.label
    return "aborted", move.failure.reason if move.failure is not None else "UNKNOWN"
