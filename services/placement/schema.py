"""Schema of the directory's SQLite file: tables, version, and opening it safely."""

from __future__ import annotations

import sqlite3

from services.placement.phases import MovePhase
from worldline.errors import Conflict, InvalidInput, VersionSkew

SCHEMA_VERSION = 6

_TABLES = """
CREATE TABLE nodes (
    node_id TEXT PRIMARY KEY,
    mover_address TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    host_id TEXT NOT NULL,
    devices TEXT NOT NULL
) STRICT;

CREATE TABLE engines (
    engine_id TEXT PRIMARY KEY,
    node_id TEXT NOT NULL REFERENCES nodes (node_id),
    engine_address TEXT NOT NULL,
    device TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    device_uuid TEXT NOT NULL,
    numa_node INTEGER
) STRICT;

CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL REFERENCES engines (engine_id),
    owner_incarnation TEXT NOT NULL,
    node_id TEXT NOT NULL,
    epoch INTEGER NOT NULL CHECK (epoch > 0),
    state TEXT NOT NULL CHECK (state IN ('opening', 'live', 'moving', 'suspending', 'suspended',
        'resuming', 'lost', 'closed')),
    contract BLOB NOT NULL,
    world BLOB NOT NULL,
    slot TEXT,
    layout BLOB NOT NULL,
    topology_hash BLOB NOT NULL,
    extent_bytes INTEGER NOT NULL,
    idempotency_key TEXT UNIQUE,
    parked TEXT,
    forked_from TEXT
) STRICT;
CREATE INDEX sessions_by_owner ON sessions (owner);
CREATE INDEX sessions_by_node ON sessions (node_id) WHERE state <> 'closed';
CREATE INDEX sessions_by_parent ON sessions (json_extract(forked_from, '$.session_id'))
    WHERE forked_from IS NOT NULL;

CREATE TABLE moves (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    move_id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    source_engine_id TEXT NOT NULL,
    target_engine_id TEXT NOT NULL,
    source_epoch INTEGER NOT NULL,
    phase INTEGER NOT NULL,
    is_open INTEGER NOT NULL CHECK (is_open IN (0, 1)),
    outcome TEXT NOT NULL,
    facts TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    idempotency_key TEXT UNIQUE,
    changed_unix_s REAL NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_open_move_per_session ON moves (session_id) WHERE is_open = 1;
CREATE INDEX moves_by_outcome ON moves (outcome);
CREATE INDEX moves_by_session ON moves (session_id, sequence);

CREATE TABLE suspensions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    suspension_id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    verb INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    phase INTEGER NOT NULL,
    is_open INTEGER NOT NULL CHECK (is_open IN (0, 1)),
    facts TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    idempotency_key TEXT UNIQUE
) STRICT;
CREATE UNIQUE INDEX one_open_suspension_per_session ON suspensions (session_id) WHERE is_open = 1;

CREATE TABLE drains (
    node_id TEXT PRIMARY KEY REFERENCES nodes (node_id),
    state TEXT NOT NULL CHECK (state IN ('draining', 'drained', 'incomplete')),
    began_unix_s REAL NOT NULL,
    deadline_unix_s REAL NOT NULL,
    ended_unix_s REAL,
    moved INTEGER NOT NULL,
    remaining TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE path_rates (
    source_node_id TEXT NOT NULL,
    target_node_id TEXT NOT NULL,
    rate_bytes_per_s REAL NOT NULL,
    setup_ms REAL NOT NULL,
    samples INTEGER NOT NULL,
    changed_unix_s REAL NOT NULL,
    PRIMARY KEY (source_node_id, target_node_id)
) STRICT, WITHOUT ROWID;
"""

#: Notes of what changed, of this connection and in its memory only; `changes` reads them. Each
#: session and each move is noted once, by its latest change.
_NOTES = f"""
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE changes (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (kind, name)
);
CREATE TEMP TRIGGER session_inserted AFTER INSERT ON main.sessions BEGIN
    INSERT OR REPLACE INTO changes (kind, name) VALUES ('session', NEW.session_id);
END;
CREATE TEMP TRIGGER session_updated AFTER UPDATE ON main.sessions BEGIN
    INSERT OR REPLACE INTO changes (kind, name) VALUES ('session', NEW.session_id);
END;
CREATE TEMP TRIGGER move_inserted AFTER INSERT ON main.moves WHEN NEW.is_open BEGIN
    INSERT OR REPLACE INTO changes (kind, name) VALUES ('move', NEW.move_id);
END;
CREATE TEMP TRIGGER move_updated AFTER UPDATE ON main.moves
WHEN OLD.is_open <> NEW.is_open
    OR OLD.target_engine_id <> NEW.target_engine_id
    OR (OLD.phase = {int(MovePhase.COMMITTED)}) <> (NEW.phase = {int(MovePhase.COMMITTED)})
BEGIN
    INSERT OR REPLACE INTO changes (kind, name) VALUES ('move', NEW.move_id);
END;
INSERT INTO changes (kind, name)
    SELECT 'session', session_id FROM main.sessions WHERE state <> 'closed' ORDER BY session_id;
INSERT INTO changes (kind, name)
    SELECT 'move', move_id FROM main.moves WHERE is_open ORDER BY sequence;
"""  # noqa: S608 - a number of ours


def open_directory(path: str) -> sqlite3.Connection:
    """The one connection to the directory, its schema checked or made.

    The file is locked for this process: two placements on one directory would be two writers.

    Raises:
        VersionSkew: the file has a schema that this version does not know.
        Conflict: another process holds the file.
        InvalidInput: it is no directory, or cannot be opened.
    """
    try:
        db = sqlite3.connect(path, isolation_level=None, timeout=2.0)
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    try:
        # Before WAL: in this mode the lock is kept and no shared-memory file is made.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA foreign_keys=ON")
        _check_or_create(db, path)
        db.executescript(_NOTES)
    except sqlite3.OperationalError as error:
        db.close()
        if "locked" not in str(error):
            raise _unusable(path, error) from error
        raise Conflict(
            f"another placement has the directory {path} open; a directory has one writer",
            reason="DIRECTORY_LOCKED",
            field="directory_path",
        ) from error
    except sqlite3.DatabaseError as error:
        db.close()
        raise _unusable(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _unusable(path: str, error: sqlite3.Error) -> InvalidInput:
    return InvalidInput(
        f"cannot open the directory {path}: {error}",
        reason="DIRECTORY_UNUSABLE",
        field="directory_path",
    )


def _check_or_create(db: sqlite3.Connection, path: str) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if version == 0 and tables == 0:
        db.executescript(
            f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    elif version != SCHEMA_VERSION:
        raise VersionSkew(
            f"the directory {path} has schema version {version}, this placement knows "
            f"{SCHEMA_VERSION}; start the version that wrote it, or move the file away",
            reason="DIRECTORY_SCHEMA_UNKNOWN",
            field="directory_path",
        )
    else:
        # Takes the write lock now rather than at the first write.
        db.executescript("BEGIN IMMEDIATE; COMMIT;")
