"""Suspensions in the directory, and the two transactions that decide them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

from services.placement.directory import transaction
from services.placement.move_facts import slot_to_list
from services.placement.parked import parked_by, parked_from_json, parked_to_json
from services.placement.records import SessionState
from services.placement.session_table import get_session
from services.placement.suspension import Suspension, resumed_contract
from services.placement.suspension_record import SuspensionEntry, entry_from_row, facts_to_json
from worldline.contract import contract_to_proto
from worldline.errors import InvariantBroken
from worldline.park import SuspensionPhase, SuspensionVerb

#: Where the session comes from, and what it is called meanwhile.
_BEGINS = {
    SuspensionVerb.SUSPEND: (SessionState.LIVE, SessionState.SUSPENDING),
    SuspensionVerb.RESUME: (SessionState.SUSPENDED, SessionState.RESUMING),
}


class Taken(Exception):
    """The session is not in the state that it begins from; the text says in which it is."""


class Refused(Exception):
    """The record did not happen: somebody else changed something first; the text says what."""


def insert_suspension(db: sqlite3.Connection, entry: SuspensionEntry) -> None:
    """A new one; its session is SUSPENDING or RESUMING from now on.

    Raises:
        Taken: the session is in another state, owner or epoch.
    """
    one = entry.suspension
    before, meanwhile = _BEGINS[one.verb]
    with transaction(db, durable=True):
        # One that resumes is counted where it is to be, which may be another engine of its node.
        taken = db.execute(
            "UPDATE sessions SET state = ?, owner = ?"
            " WHERE session_id = ? AND epoch = ? AND state = ?",
            (meanwhile.value, one.party.engine_id, one.session_id, one.epoch, before.value),
        ).rowcount
        if taken != 1:
            row = db.execute(
                "SELECT state FROM sessions WHERE session_id = ?", (one.session_id,)
            ).fetchone()
            raise Taken("unknown" if row is None else row["state"])
        db.execute(
            "INSERT INTO suspensions (suspension_id, session_id, verb, epoch, phase, is_open,"
            " facts, trace_id, idempotency_key) VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?)",
            (
                one.suspension_id,
                one.session_id,
                int(one.verb),
                one.epoch,
                int(one.phase),
                facts_to_json(entry),
                entry.trace_id,
                entry.idempotency_key or None,
            ),
        )


def record_suspension(db: sqlite3.Connection, entry: SuspensionEntry) -> None:
    """The one transaction that decides: the session is suspended, or owned again in the next epoch.

    Asking again for one that is recorded changes nothing.

    Raises:
        Refused: the session, its node or its engine is no longer what it began with.
    """
    one = entry.suspension
    found = get_suspension(db, one.suspension_id)
    if found is not None and found.suspension.phase in (
        SuspensionPhase.RECORDED,
        SuspensionPhase.DONE,
    ):
        return
    with transaction(db, durable=True):
        # The copy is the mover's: a later process of its name has it not.
        _check(db, "nodes", "node_id", one.party.node_id, one.party.node_incarnation)
        if one.verb is SuspensionVerb.SUSPEND:
            changed = _suspend(db, one)
        else:
            _check(db, "engines", "engine_id", one.party.engine_id, one.party.engine_incarnation)
            changed = _resume(db, one)
        if changed != 1:
            raise Refused(
                f"session {one.session_id} is no longer in epoch {one.epoch}, or not in this "
                "suspension"
            )
        _write(
            db,
            entry.with_suspension(replace(one, phase=SuspensionPhase.RECORDED)),
            SuspensionPhase.BEGUN,
        )


def _check(db: sqlite3.Connection, table: str, key: str, name: str, incarnation: str) -> None:
    row = db.execute(
        f"SELECT incarnation FROM {table} WHERE {key} = ?",  # noqa: S608 - no input in it
        (name,),
    ).fetchone()
    if row is None or row["incarnation"] != incarnation:
        raise Refused(f"{name} was replaced by another process since it began")


def _suspend(db: sqlite3.Connection, one: Suspension) -> int:
    parked = parked_by(
        one.park_id,
        one.kind,
        one.party,
        block_index=one.block_index,
        digest=one.digest,
        fingerprint=one.fingerprint,
    )
    # No process owns it: nobody's renewal names it, and nobody's revives it.
    return db.execute(
        "UPDATE sessions SET state = ?, owner_incarnation = '', slot = 'null', parked = ?"
        " WHERE session_id = ? AND owner = ? AND owner_incarnation = ? AND epoch = ? AND state = ?",
        (
            SessionState.SUSPENDED.value,
            parked_to_json(parked),
            one.session_id,
            one.party.engine_id,
            one.party.engine_incarnation,
            one.epoch,
            SessionState.SUSPENDING.value,
        ),
    ).rowcount


def _resume(db: sqlite3.Connection, one: Suspension) -> int:
    session = get_session(db, one.session_id)
    if session is None:
        return 0
    contract = resumed_contract(one, session.contract)
    return db.execute(
        "UPDATE sessions SET owner = ?, owner_incarnation = ?, node_id = ?, epoch = epoch + 1,"
        " slot = ?, parked = NULL, contract = ? WHERE session_id = ? AND epoch = ? AND state = ?",
        (
            one.party.engine_id,
            one.party.engine_incarnation,
            one.party.node_id,
            json.dumps(slot_to_list(one.slot)),
            contract_to_proto(contract).SerializeToString(deterministic=True),
            one.session_id,
            one.epoch,
            SessionState.RESUMING.value,
        ),
    ).rowcount


def finish_suspension(db: sqlite3.Connection, entry: SuspensionEntry) -> None:
    """The end of an open one, and where its session stands from now on.

    Raises:
        InvariantBroken: the phase is no end, or not one that can follow.
    """
    one = entry.suspension
    if not one.phase.terminal:
        raise InvariantBroken(f"{one.phase.name} is no end of a suspension")
    done = one.phase is SuspensionPhase.DONE
    with transaction(db, durable=True):
        _write(db, entry, SuspensionPhase.RECORDED if done else SuspensionPhase.BEGUN)
        before, meanwhile = _BEGINS[one.verb]
        after = SessionState.LIVE if done and one.verb is SuspensionVerb.RESUME else before
        # A suspend that is done has left SUSPENDING with its record.
        db.execute(
            "UPDATE sessions SET state = ? WHERE session_id = ? AND state = ?",
            (
                (SessionState.LOST if one.lost else after).value,
                one.session_id,
                meanwhile.value,
            ),
        )


def _write(db: sqlite3.Connection, entry: SuspensionEntry, before: SuspensionPhase) -> None:
    one = entry.suspension
    written = db.execute(
        "UPDATE suspensions SET phase = ?, is_open = ?, facts = ?, trace_id = ?"
        " WHERE suspension_id = ? AND is_open = 1 AND phase = ?",
        (
            int(one.phase),
            int(not one.phase.terminal),
            facts_to_json(entry),
            entry.trace_id,
            one.suspension_id,
            int(before),
        ),
    ).rowcount
    if written != 1:
        raise InvariantBroken(
            f"suspension {one.suspension_id} is not open where {one.phase.name} follows"
        )


def get_suspension(db: sqlite3.Connection, suspension_id: str) -> SuspensionEntry | None:
    """One suspension."""
    row = db.execute(
        "SELECT * FROM suspensions WHERE suspension_id = ?", (suspension_id,)
    ).fetchone()
    return None if row is None else entry_from_row(row)


def suspension_by_key(db: sqlite3.Connection, key: str) -> SuspensionEntry | None:
    """The one that an earlier request with this idempotency key made."""
    row = db.execute("SELECT * FROM suspensions WHERE idempotency_key = ?", (key,)).fetchone()
    return None if row is None else entry_from_row(row)


def open_suspensions(db: sqlite3.Connection) -> list[SuspensionEntry]:
    """Every one that has not ended, oldest first."""
    rows = db.execute("SELECT * FROM suspensions WHERE is_open = 1 ORDER BY sequence").fetchall()
    return [entry_from_row(row) for row in rows]


def lose_parked(db: sqlite3.Connection) -> int:
    """SUSPENDED to LOST where the state was in the memory of a mover that is gone. How many."""
    rows = db.execute(
        "SELECT session_id, parked, nodes.incarnation AS incarnation FROM sessions"
        " JOIN nodes ON nodes.node_id = sessions.node_id WHERE state = ?",
        (SessionState.SUSPENDED.value,),
    ).fetchall()
    gone = [
        row["session_id"]
        for row in rows
        if (parked := parked_from_json(row["parked"])) is not None
        and parked.gone_with(row["incarnation"])
    ]
    for session_id in gone:
        with transaction(db, durable=True):
            db.execute(
                "UPDATE sessions SET state = ?, parked = NULL WHERE session_id = ? AND state = ?",
                (SessionState.LOST.value, session_id, SessionState.SUSPENDED.value),
            )
    return len(gone)
