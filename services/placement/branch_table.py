"""Branches in the directory: sessions that begin together, as copies of another, or not at all."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.placement.directory import transaction
from services.placement.move_facts import slot_to_list
from services.placement.records import SessionRecord, SessionState
from services.placement.session_table import add_session, session_of
from services.placement.values import SlotName


@dataclass(frozen=True, slots=True)
class MadeBranch:
    """What the engine made of a branch."""

    session_id: str
    slot: SlotName
    layout: bytes
    topology_hash: bytes
    extent_bytes: int


def insert_branches(
    db: sqlite3.Connection,
    parent: SessionRecord,
    plan: Callable[[int], tuple[SessionRecord, ...]],
) -> tuple[SessionRecord, ...] | None:
    """The sessions that `plan` makes, given the lowest number that no branch of the parent had.

    None, and nothing is written, where the parent no longer lives as it did.

    Raises:
        Conflict: a name or an idempotency key exists.
        InvalidInput: what `plan` raises.
    """
    with transaction(db, durable=True):
        stands = db.execute(
            "SELECT COUNT(*) FROM sessions WHERE session_id = ? AND state = ? AND owner = ?"
            " AND owner_incarnation = ? AND epoch = ?",
            (
                parent.session_id,
                SessionState.LIVE.value,
                parent.owner,
                parent.owner_incarnation,
                parent.epoch,
            ),
        ).fetchone()[0]
        if not stands:
            return None
        highest = db.execute(
            # A row of an earlier version has no word of it: its number is taken.
            "SELECT MAX(json_extract(forked_from, '$.branch')) FROM sessions"
            " WHERE json_extract(forked_from, '$.session_id') = ?"
            " AND NOT COALESCE(json_extract(forked_from, '$.number_returned'), 0)",
            (parent.session_id,),
        ).fetchone()[0]
        branches = plan(0 if highest is None else highest + 1)
        for branch in branches:
            add_session(db, branch)
    return branches


def branches_made(
    db: sqlite3.Connection, made: tuple[MadeBranch, ...], block_index: int
) -> tuple[SessionRecord, ...] | None:
    """All of them from OPENING to LIVE, at that block; None, and none of them, where one is not
    opening any more.
    """
    names = [one.session_id for one in made]
    with transaction(db, durable=True):
        if len(_named(db, names, SessionState.OPENING)) < len(names):
            return None
        for one in made:
            db.execute(
                "UPDATE sessions SET state = ?, slot = ?, layout = ?, topology_hash = ?,"
                " extent_bytes = ?,"
                " forked_from = json_set(forked_from, '$.block_index', ?) WHERE session_id = ?",
                (
                    SessionState.LIVE.value,
                    json.dumps(slot_to_list(one.slot)),
                    one.layout,
                    one.topology_hash,
                    one.extent_bytes,
                    block_index,
                    one.session_id,
                ),
            )
        return _named(db, names, SessionState.LIVE)


def return_numbers(db: sqlite3.Connection, session_ids: Iterable[str]) -> None:
    """Of branches of a fork that the engine has refused: closed, and never were."""
    with transaction(db, durable=True):
        for session_id in session_ids:
            db.execute(
                "UPDATE sessions"
                " SET forked_from = json_set(forked_from, '$.number_returned', json('true'))"
                " WHERE session_id = ? AND state = ?"
                " AND json_extract(forked_from, '$.block_index') IS NULL",
                (session_id, SessionState.CLOSED.value),
            )


def branches_by_keys(db: sqlite3.Connection, keys: tuple[str, ...]) -> tuple[SessionRecord, ...]:
    """The branches that an earlier request made under these keys, in their order."""
    marks = ", ".join("?" for _ in keys)
    rows = db.execute(
        f"SELECT * FROM sessions WHERE idempotency_key IN ({marks})",  # noqa: S608 - no input in it
        keys,
    ).fetchall()
    found = {row["idempotency_key"]: session_of(row) for row in rows}
    return tuple(found[key] for key in keys if key in found)


def _named(
    db: sqlite3.Connection, names: list[str], state: SessionState
) -> tuple[SessionRecord, ...]:
    marks = ", ".join("?" for _ in names)
    rows = db.execute(
        f"SELECT * FROM sessions WHERE state = ? AND session_id IN ({marks})",  # noqa: S608 - as above
        (state.value, *names),
    ).fetchall()
    found = {row["session_id"]: session_of(row) for row in rows}
    return tuple(found[name] for name in names if name in found)
