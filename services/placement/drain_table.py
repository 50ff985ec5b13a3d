"""Drains in the directory, and the sessions of the nodes that are drained."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import asdict

from services.placement.directory import transaction
from services.placement.drain_record import DrainRecord
from services.placement.drain_values import DrainState, Left, Why
from services.placement.records import SessionRecord, SessionState
from services.placement.session_table import session_of


def put_drains(db: sqlite3.Connection, records: Iterable[DrainRecord]) -> None:
    """Begin drains, or write how they go on; all of them or none."""
    with transaction(db, durable=True):
        for one in records:
            remaining = [asdict(left) | {"state": left.state.value} for left in one.left]
            db.execute(
                "INSERT OR REPLACE INTO drains VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    one.node_id,
                    one.state.value,
                    one.began_unix_s,
                    one.deadline_unix_s,
                    one.ended_unix_s,
                    one.moved,
                    json.dumps(remaining),
                ),
            )


def drop_drains(db: sqlite3.Connection, node_ids: Iterable[str]) -> None:
    """These nodes are drained no more."""
    with transaction(db, durable=True):
        db.executemany("DELETE FROM drains WHERE node_id = ?", [(one,) for one in node_ids])


def all_drains(db: sqlite3.Connection) -> list[DrainRecord]:
    """Every node that is drained or being drained, by name."""
    rows = db.execute("SELECT * FROM drains ORDER BY node_id").fetchall()
    return [_record(row) for row in rows]


def sessions_on(db: sqlite3.Connection, node_ids: Collection[str]) -> list[SessionRecord]:
    """The sessions on those nodes that are not closed, by name; without their layouts."""
    marks = ", ".join("?" for _ in node_ids)
    rows = db.execute(
        "SELECT session_id, owner, owner_incarnation, node_id, epoch, state, contract, world, slot,"  # noqa: S608 - no input in it
        " x'' AS layout, topology_hash, extent_bytes, idempotency_key, parked, forked_from"
        " FROM sessions"
        f" WHERE node_id IN ({marks}) AND state <> '{SessionState.CLOSED.value}'"
        " ORDER BY session_id",
        tuple(node_ids),
    ).fetchall()
    return [session_of(row) for row in rows]


def _record(row: sqlite3.Row) -> DrainRecord:
    return DrainRecord(
        node_id=row["node_id"],
        state=DrainState(row["state"]),
        began_unix_s=row["began_unix_s"],
        deadline_unix_s=row["deadline_unix_s"],
        ended_unix_s=row["ended_unix_s"],
        moved=row["moved"],
        left=tuple(_left(one) for one in json.loads(row["remaining"])),
    )


def _left(facts: dict[str, object]) -> Left:
    why = facts["why"]
    fields = facts | {
        "state": SessionState(facts["state"]),
        "why": Why(**why) if isinstance(why, dict) else None,
    }
    return Left(**fields)  # type: ignore[arg-type]
