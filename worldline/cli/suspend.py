"""Suspend and resume: take a session out of its slot and let it go on later."""

from __future__ import annotations

from typing import Annotated

import typer

from worldline.cli.common import (
    JsonOption,
    PlacementOption,
    SessionArgument,
    TimeoutOption,
    connected,
    run,
)
from worldline.cli.output import (
    TIER_DROPPED,
    console,
    hex_digest,
    human_bytes,
    print_json,
    print_table,
)
from worldline.sdk import ParkKind, SessionInfo, SuspensionRecord
from worldline.sdk.suspension import park_kind


def suspend(
    session_id: SessionArgument,
    to: Annotated[
        str,
        typer.Option(help="memory (gone with the node's mover) or file (outlives it)."),
    ] = "memory",
    timeout_s: TimeoutOption = 300.0,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Suspend a session: its state is parked and proven, its slot is free."""

    async def work() -> int:
        kind = park_kind(to)
        async with connected(placement, timeout_s) as client:
            session = await client.session(session_id)
            record = await session.suspend(kind)
        _print(session.info, record, as_json)
        return 0

    run(work)


def resume(
    session_id: SessionArgument,
    timeout_s: TimeoutOption = 300.0,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Resume a suspended session on the node that has its state.

    Exit status 3 when there is no room for it now, or no engine there that may go
    on with it; 6 when its state is no longer what was parked.
    """

    async def work() -> int:
        async with connected(placement, timeout_s) as client:
            session = await client.session(session_id)
            record = await session.resume()
        _print(session.info, record, as_json)
        return 0

    run(work)


def _print(info: SessionInfo, record: SuspensionRecord | None, as_json: bool) -> None:
    if as_json:
        print_json({"session": info, "suspension": record})
        return
    where = "" if info.parked is None else f" in {_place(info.parked)}"
    already = "" if record is not None else " already"
    console.print(
        f"session {info.session_id} is {info.state}{already}{where}, epoch {info.epoch}",
        markup=False,
        highlight=False,
    )
    if record is None:
        return
    if record.tier_dropped:
        console.print(TIER_DROPPED)
    print_table(("STEP", "MS"), [(name, f"{ms:.1f}") for name, ms in record.timings_ms.items()])
    copy_ms = max(record.copy_ms, 1e-3)
    direct = ", direct I/O" if record.direct_io else ""
    console.print(
        f"copied {human_bytes(record.copied_bytes)} at "
        f"{human_bytes(record.copied_bytes / copy_ms * 1e3)}/s{direct}; "
        f"digest {hex_digest(record.digest)}, equal",
        markup=False,
        highlight=False,
    )


def _place(kind: ParkKind) -> str:
    return {ParkKind.MEMORY: "memory", ParkKind.FILE: "a file"}[kind]
