"""Sessions in the directory: owner, epoch, state."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from services.placement.directory import transaction
from services.placement.forked import forked_from_json, forked_to_json
from services.placement.move_facts import slot_from_list, slot_to_list
from services.placement.parked import parked_from_json, parked_to_json
from services.placement.records import SessionRecord, SessionState, WorldKind
from services.placement.values import SlotName
from worldline.contract import contract_from_proto, contract_to_proto
from worldline.errors import Conflict, InvariantBroken, WorldlineError
from worldline.v1 import contract_pb2, engine_pb2


def insert_session(db: sqlite3.Connection, session: SessionRecord) -> None:
    """A new session.

    Raises:
        Conflict: the id or the idempotency key exists; nothing is overwritten.
    """
    with transaction(db, durable=True):
        add_session(db, session)


def add_session(db: sqlite3.Connection, session: SessionRecord) -> None:
    """As `insert_session`, within the caller's transaction."""
    world = engine_pb2.WorldSpec(preset=session.world.preset, seed=session.world.seed)
    try:
        db.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                session.session_id,
                session.owner,
                session.owner_incarnation,
                session.node_id,
                session.epoch,
                session.state.value,
                contract_to_proto(session.contract).SerializeToString(deterministic=True),
                world.SerializeToString(deterministic=True),
                json.dumps(slot_to_list(session.slot)),
                session.layout,
                session.topology_hash,
                session.extent_bytes,
                session.idempotency_key or None,
                parked_to_json(session.parked),
                forked_to_json(session.forked_from),
            ),
        )
    except sqlite3.IntegrityError as error:
        raise Conflict(
            f"session {session.session_id} or its idempotency key exists: {error}",
            reason="ALREADY_EXISTS",
        ) from error


def opened(
    db: sqlite3.Connection,
    session_id: str,
    slot: SlotName,
    layout: bytes,
    topology_hash: bytes,
    extent_bytes: int,
) -> bool:
    """OPENING to LIVE, with what the engine made; False when it is no longer opening."""
    with transaction(db, durable=True):
        return (
            db.execute(
                "UPDATE sessions SET state = ?, slot = ?, layout = ?, topology_hash = ?,"
                " extent_bytes = ? WHERE session_id = ? AND state = ?",
                (
                    SessionState.LIVE.value,
                    json.dumps(slot_to_list(slot)),
                    layout,
                    topology_hash,
                    extent_bytes,
                    session_id,
                    SessionState.OPENING.value,
                ),
            ).rowcount
            == 1
        )


def set_state(
    db: sqlite3.Connection,
    session_id: str,
    allowed: Iterable[SessionState],
    state: SessionState,
) -> bool:
    """Change a session's state if it is one of `allowed`; False when it is not.

    A closed session gives its idempotency key back.
    """
    before = sorted(one.value for one in allowed)
    marks = ", ".join("?" for _ in before)
    keep = "" if state is not SessionState.CLOSED else ", idempotency_key = NULL"
    with transaction(db, durable=True):
        return (
            db.execute(
                f"UPDATE sessions SET state = ?{keep}"  # noqa: S608 - no input in it
                f" WHERE session_id = ? AND state IN ({marks})",
                (state.value, session_id, *before),
            ).rowcount
            == 1
        )


def count_by_state(db: sqlite3.Connection) -> dict[str, int]:
    """How many sessions are in each state; closed ones are not counted."""
    states = [one.value for one in SessionState if one is not SessionState.CLOSED]
    rows = db.execute(
        "SELECT state, COUNT(*) FROM sessions WHERE state <> 'closed' GROUP BY state"
    ).fetchall()
    return dict.fromkeys(states, 0) | dict(rows)


def lose_sessions_of(db: sqlite3.Connection, engine_id: str, incarnation: str) -> int:
    """LIVE to LOST for an engine that stopped renewing. Returns how many."""
    return _swap(
        db,
        "owner = ? AND owner_incarnation = ?",
        (engine_id, incarnation),
        SessionState.LIVE,
        SessionState.LOST,
    )


def lose_strays(db: sqlite3.Connection) -> int:
    """LIVE to LOST where the owner was replaced by another process of its name."""
    return _swap(
        db,
        "owner_incarnation <> (SELECT incarnation FROM engines WHERE engine_id = owner)",
        (),
        SessionState.LIVE,
        SessionState.LOST,
    )


def revive_sessions_of(db: sqlite3.Connection, engine_id: str, incarnation: str) -> int:
    """LOST to LIVE for the same process back from a pause: owner and epoch never changed."""
    return _swap(
        db,
        "owner = ? AND owner_incarnation = ?",
        (engine_id, incarnation),
        SessionState.LOST,
        SessionState.LIVE,
    )


def _swap(
    db: sqlite3.Connection,
    where: str,
    values: tuple[str, ...],
    before: SessionState,
    after: SessionState,
) -> int:
    """Looks before it writes: this runs at every renewal and finds nothing to do."""
    test = f"FROM sessions WHERE {where} AND state = ?"
    found = db.execute(f"SELECT COUNT(*) {test}", (*values, before.value)).fetchone()[0]
    if not found:
        return 0
    with transaction(db, durable=True):
        return db.execute(
            f"UPDATE sessions SET state = ? WHERE {where} AND state = ?",  # noqa: S608 - no input
            (after.value, *values, before.value),
        ).rowcount


def get_session(db: sqlite3.Connection, session_id: str) -> SessionRecord | None:
    """One session, closed ones too."""
    row = db.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else session_of(row)


def session_by_key(db: sqlite3.Connection, idempotency_key: str) -> SessionRecord | None:
    """The session that an earlier request with this key made."""
    row = db.execute(
        "SELECT * FROM sessions WHERE idempotency_key = ?", (idempotency_key,)
    ).fetchone()
    return None if row is None else session_of(row)


def sessions_now(db: sqlite3.Connection) -> list[SessionRecord]:
    """Every session that is not closed, by name."""
    rows = db.execute(
        "SELECT * FROM sessions WHERE state <> ? ORDER BY session_id",
        (SessionState.CLOSED.value,),
    ).fetchall()
    return [session_of(row) for row in rows]


def session_of(row: sqlite3.Row) -> SessionRecord:
    """The session of a row.

    Raises:
        InvariantBroken: it does not parse.
    """
    try:
        world = engine_pb2.WorldSpec.FromString(row["world"])
        return SessionRecord(
            session_id=row["session_id"],
            owner=row["owner"],
            owner_incarnation=row["owner_incarnation"],
            node_id=row["node_id"],
            epoch=row["epoch"],
            state=SessionState(row["state"]),
            contract=contract_from_proto(contract_pb2.Contract.FromString(row["contract"])),
            world=WorldKind(preset=world.preset, seed=world.seed),
            slot=slot_from_list(json.loads(row["slot"])),
            layout=row["layout"],
            topology_hash=row["topology_hash"],
            extent_bytes=row["extent_bytes"],
            idempotency_key=row["idempotency_key"] or "",
            parked=parked_from_json(row["parked"]),
            forked_from=forked_from_json(row["forked_from"]),
        )
    except (DecodeError, TypeError, ValueError, WorldlineError) as error:
        raise InvariantBroken(
            f"the directory's record of session {row['session_id']} does not parse: {error!r}"
        ) from error
