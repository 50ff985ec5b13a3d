"""Changes: which sessions and moves of the directory changed since somebody last looked.

Triggers (`schema`) note every write, whoever makes it, in the same transaction: what is rolled back
was never noted. The notes begin with every session that is not closed and every move that is open.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from services.placement.move import Move
from services.placement.move_facts import entry_from_row
from services.placement.records import SessionRecord
from services.placement.session_table import session_of


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed, as it is now, closed sessions and ended moves too.

    `version` is what to ask from next. Sessions are without their layouts: nobody who keeps all
    sessions needs those, and they are the most of them. Of moves only what their slots depend on is
    noted: target, commit and end.
    """

    version: int
    sessions: tuple[SessionRecord, ...] = ()
    moves: tuple[Move, ...] = ()


def changes_since(db: sqlite3.Connection, version: int) -> Changes:
    """What changed after `version`, in order; 0 for everything. What came before is forgotten.

    An answer that got lost is had again by asking from the same version.
    """
    db.execute("DELETE FROM changes WHERE version <= ?", (version,))
    sessions = db.execute(
        "SELECT session_id, owner, owner_incarnation, node_id, epoch, state, contract, world, slot,"
        " x'' AS layout, topology_hash, extent_bytes, idempotency_key, parked, forked_from"
        " FROM changes JOIN sessions ON kind = 'session' AND session_id = name WHERE version > ?"
        " ORDER BY version",
        (version,),
    ).fetchall()
    moves = db.execute(
        "SELECT moves.* FROM changes JOIN moves ON kind = 'move' AND move_id = name"
        " WHERE version > ? ORDER BY version",
        (version,),
    ).fetchall()
    newest = db.execute("SELECT MAX(version) FROM changes").fetchone()[0]
    return Changes(
        version=version if newest is None else newest,
        sessions=tuple(session_of(row) for row in sessions),
        moves=tuple(entry_from_row(row).move for row in moves),
    )
