"""Nodes and engines in the directory, and the rates that their paths reached."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict
from typing import Any

from services.placement.device import DeviceRecord
from services.placement.directory import transaction
from services.placement.records import (
    EngineRecord,
    NodeRecord,
    PathRecord,
    SessionState,
)
from worldline.state.manifest import Fingerprint

#: Weight of the newest sample, the smoothing of RFC 6298 (alpha = 1/8).
_NEWEST = 1 / 8


def put_node(db: sqlite3.Connection, node: NodeRecord) -> None:
    """Register a node, or its next incarnation."""
    devices = json.dumps([asdict(device) for device in node.devices])
    with transaction(db, durable=False):
        db.execute(
            "INSERT INTO nodes VALUES (?, ?, ?, ?, ?) ON CONFLICT (node_id) DO UPDATE SET"
            " mover_address = excluded.mover_address, incarnation = excluded.incarnation,"
            " host_id = excluded.host_id, devices = excluded.devices",
            (node.node_id, node.mover_address, node.incarnation, node.host_id, devices),
        )


def put_engine(db: sqlite3.Connection, engine: EngineRecord) -> int:
    """Register an engine; sessions of an earlier incarnation are lost. Returns how many.

    A session in a move is left to the move, which may yet carry it away from the dead engine.
    """
    facts = json.dumps(dict(engine.fingerprint.facts), sort_keys=True)
    with transaction(db, durable=True):
        db.execute(
            "INSERT INTO engines VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (engine_id) DO UPDATE SET"
            " node_id = excluded.node_id, engine_address = excluded.engine_address,"
            " device = excluded.device, fingerprint = excluded.fingerprint,"
            " incarnation = excluded.incarnation, device_uuid = excluded.device_uuid,"
            " numa_node = excluded.numa_node",
            (
                engine.engine_id,
                engine.node_id,
                engine.engine_address,
                engine.device,
                facts,
                engine.incarnation,
                engine.device_uuid,
                engine.numa_node,
            ),
        )
        return db.execute(
            "UPDATE sessions SET state = ? WHERE owner = ? AND owner_incarnation <> ?"
            " AND state = ?",
            (
                SessionState.LOST.value,
                engine.engine_id,
                engine.incarnation,
                SessionState.LIVE.value,
            ),
        ).rowcount


def all_nodes(db: sqlite3.Connection) -> list[NodeRecord]:
    """Every node ever registered, by name."""
    rows = db.execute("SELECT * FROM nodes ORDER BY node_id").fetchall()
    return [_node(row) for row in rows]


def _node(row: sqlite3.Row) -> NodeRecord:
    devices = tuple(_device(one) for one in json.loads(row["devices"]))
    return NodeRecord(**dict(row) | {"devices": devices})


def _device(stored: dict[str, Any]) -> DeviceRecord:
    # What an older placement has written names no PCIe peers.
    peers = {name: tuple(stored.get(name, ())) for name in ("nvlink_peers", "pcie_peers")}
    return DeviceRecord(**stored | peers)


def all_engines(db: sqlite3.Connection) -> list[EngineRecord]:
    """Every engine ever registered, by name."""
    rows = db.execute("SELECT * FROM engines ORDER BY engine_id").fetchall()
    return [_engine(row) for row in rows]


def _engine(row: sqlite3.Row) -> EngineRecord:
    fingerprint = Fingerprint.of(json.loads(row["fingerprint"]))
    return EngineRecord(**dict(row) | {"fingerprint": fingerprint})


def note_path(
    db: sqlite3.Connection,
    source_node_id: str,
    target_node_id: str,
    rate_bytes_per_s: float,
    setup_ms: float,
) -> None:
    """Smooth a committed move's rate, and what it took beside its transfer, into the path's."""
    with transaction(db, durable=False):
        db.execute(
            "INSERT INTO path_rates VALUES (?, ?, ?, ?, 1, ?)"
            " ON CONFLICT (source_node_id, target_node_id) DO UPDATE SET"
            " rate_bytes_per_s = rate_bytes_per_s + ? * (excluded.rate_bytes_per_s"
            " - rate_bytes_per_s),"
            " setup_ms = setup_ms + ? * (excluded.setup_ms - setup_ms),"
            " samples = samples + 1, changed_unix_s = excluded.changed_unix_s",
            (
                source_node_id,
                target_node_id,
                rate_bytes_per_s,
                setup_ms,
                time.time(),
                _NEWEST,
                _NEWEST,
            ),
        )


def latest_paths(db: sqlite3.Connection, limit: int) -> list[PathRecord]:
    """The paths that were used last, the latest first."""
    rows = db.execute(
        "SELECT * FROM path_rates ORDER BY changed_unix_s DESC, source_node_id, target_node_id"
        " LIMIT ?",
        (limit,),
    ).fetchall()
    return [PathRecord(**dict(row)) for row in rows]
