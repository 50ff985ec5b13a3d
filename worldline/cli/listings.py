"""Listings: nodes, sessions and the state of the whole."""

from __future__ import annotations

from worldline.admissibility.profile_row import QuantumSpread
from worldline.cli.common import JsonOption, PlacementOption, connected, run
from worldline.cli.output import (
    COUNTED,
    console,
    counted,
    counts_told,
    human_bytes,
    move_jsonable,
    print_json,
    print_table,
)
from worldline.sdk import BlockCounts, Engine, MoveRecord, Node, SessionInfo

_RECENT_MOVES = 5


def nodes(placement: PlacementOption = "", as_json: JsonOption = False) -> None:
    """List nodes, their slots and their engines, and what quanta were measured to take there."""

    async def work() -> int:
        async with connected(placement) as client:
            found = await client.nodes()
        if as_json:
            print_json(found)
        else:
            _print_nodes(found)
            _print_rows(found)
        return 0

    run(work)


def sessions(placement: PlacementOption = "", as_json: JsonOption = False) -> None:
    """List sessions and where they live."""

    async def work() -> int:
        async with connected(placement) as client:
            found = await client.sessions()
        if as_json:
            print_json(found)
        else:
            _print_sessions(found)
        return 0

    run(work)


def status(placement: PlacementOption = "", as_json: JsonOption = False) -> None:
    """Show nodes, sessions, recent moves and what placement holds."""

    async def work() -> int:
        async with connected(placement) as client:
            all_nodes = await client.nodes()
            all_sessions = await client.sessions()
            recent = await client.moves(limit=_RECENT_MOVES)
            itself = await client.status()
        if as_json:
            print_json(
                {
                    "nodes": all_nodes,
                    "sessions": all_sessions,
                    "moves": [move_jsonable(record) for record in recent],
                    "placement": itself,
                }
            )
            return 0
        _print_nodes(all_nodes)
        console.print()
        _print_sessions(all_sessions)
        console.print()
        print_moves(recent)
        console.print()
        print_table(("OUTCOME", "MOVES"), sorted(itself.moves_by_outcome.items()), "no moves yet")
        return 0

    run(work)


def print_moves(records: tuple[MoveRecord, ...]) -> None:
    """A table of moves, newest first."""
    rows = (
        (
            record.move_id,
            record.session_id,
            record.source_engine_id,
            record.target_engine_id or "-",
            record.outcome + (", at T1" if record.committed and record.tier_dropped else ""),
            record.reason or "-",
            f"{record.frozen_ms:.1f}" if record.committed else "-",
            human_bytes(record.push_stats.wire_bytes) if record.push_stats else "-",
        )
        for record in records
    )
    columns = ("MOVE", "SESSION", "SOURCE", "TARGET", "OUTCOME", "REASON", "FROZEN MS", "BYTES")
    drop = ("BYTES", "SOURCE", "FROZEN MS", "TARGET")
    print_table(columns, rows, "no moves", drop=drop)


def _print_nodes(found: tuple[Node, ...]) -> None:
    rows = (
        (
            node.node_id,
            ("alive" if node.alive else "silent") + (f", {node.drain}" if node.drain else ""),
            "\n".join(_name(one.name, one.uuid) for one in node.devices),
            "\n".join(f"{one.slots_free}/{one.slots_total}" for one in node.devices),
            "\n".join(human_bytes(one.slot_bytes) for one in node.devices),
            "\n".join(
                f"{engine.engine_id} ({_name(engine.device, engine.device_uuid)}, "
                f"{counted(engine.sessions, 'session')}"
                f"{'' if engine.alive else ', silent'}{_no_t0(engine)})"
                for engine in node.engines
            )
            or "none",
        )
        for node in found
    )
    columns = ("NODE", "STATE", "DEVICES", "FREE SLOTS", "SLOT", "ENGINES")
    print_table(columns, rows, "no nodes", drop=("SLOT", "FREE SLOTS"))


def _no_t0(engine: Engine) -> str:
    """Presets that it takes at T1 at best; the reason is in `--json`."""
    return f", no T0 for {', '.join(engine.differing)}" if engine.differing else ""


def _print_rows(found: tuple[Node, ...]) -> None:
    """What admission decides by: nothing where nothing was measured yet."""
    rows = [
        (
            engine.engine_id,
            row.shape.name,
            "-" if row.step is None else _spread(row.step),
            _spread(row.closing),
            row.closing.samples + (0 if row.step is None else row.step.samples),
            f"{row.age_ms / 1e3:.0f} s",
            row.binding,
        )
        for node in found
        for engine in node.engines
        for row in engine.rows
    ]
    if rows:
        console.print()
        columns = ("ENGINE", "SHAPE", "STEP MS", "LAST MS", "QUANTA", "AGE", "RAN ON")
        print_table(columns, rows, drop=("RAN ON", "QUANTA", "AGE"))


def _spread(spread: QuantumSpread) -> str:
    """Median, and in brackets the 95th percentile."""
    return f"{spread.p50_ms:.1f} ({spread.p95_ms:.1f})"


def _name(device: str, uuid: str) -> str:
    """A device as people tell it from others: GPUs by the beginning of their UUIDs."""
    return f"{device} {uuid[:12]}" if uuid else device


def _print_sessions(found: tuple[SessionInfo, ...]) -> None:
    branched = any(session.forked_from is not None for session in found)
    missing = any(_missed(session.block_counts) for session in found)
    rows = (
        (
            session.session_id,
            session.state
            if session.parked is None
            else f"{session.state} ({session.parked.name.lower()})",
            session.node_id or "-",
            session.epoch,
            session.world.preset,
            session.world.seed,
            session.contract.service_class.name,
            session.contract.determinism_tier.name.partition("_")[0],
            human_bytes(session.state_bytes),
            *(counts_told(session.block_counts) if missing else ()),
            *((_origin(session),) if branched else ()),
        )
        for session in found
    )
    kept = COUNTED if missing else ()
    origin = ("BRANCH OF",) if branched else ()
    columns = ["SESSION", "STATE", "NODE", "EPOCH", "PRESET", "SEED", "CLASS", "TIER", "BYTES"]
    drop = ("CLASS", "SEED", "BYTES", "PRESET")
    print_table((*columns, *kept, *origin), rows, "no sessions", drop=drop)


def _missed(counts: BlockCounts | None) -> bool:
    """Whether anything was not as the best of its contract."""
    return counts is not None and any(
        (counts.degraded_blocks, counts.releases_skipped, counts.missed_periods)
    )


def _origin(session: SessionInfo) -> str:
    forked = session.forked_from
    return "-" if forked is None else f"{forked.session_id} #{forked.branch}"
