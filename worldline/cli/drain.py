"""Drain: empty nodes of their sessions, and let sessions come to them again."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from worldline.cli.common import JsonOption, PlacementOption, connected, run
from worldline.cli.output import (
    console,
    counted,
    err_console,
    print_json,
    print_json_line,
    print_table,
)
from worldline.cli.quantities import duration_ms, human_ms
from worldline.errors import DeadlineExceeded, Unavailable
from worldline.sdk import Client, DrainRecord

_Nodes = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Their ids, as `worldline nodes` lists them.")
]


def drain(
    nodes: _Nodes,
    deadline: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Longest that it may take: 90s, 10min. Default: as placement is set to (10min).",
        ),
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Say what happens while it does; with --json in lines.")
    ] = False,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move every session off nodes, and let none come before `worldline undrain`.

    Interactive moves go first. Several nodes make one plan. A session that is
    refused is asked for again when the refusal says so, until the deadline.
    Leaving this command stops nothing.

    Exit status 0 only when nobody is left there; who is, is listed with the
    reason.
    """

    async def work() -> int:
        deadline_s = duration_ms(deadline, "--deadline") / 1e3 if deadline else 0.0
        async with connected(placement) as client:
            await client.drain(*nodes, deadline_s=deadline_s)
            try:
                records = await _follow(client, nodes, _Watch(as_json) if watch else None)
            except (asyncio.CancelledError, DeadlineExceeded, Unavailable):
                named = " ".join(nodes)
                err_console.print(
                    f"the drain goes on without you: `worldline drain {named}` watches it again, "
                    f"`worldline undrain {named}` ends it",
                    markup=False,
                    highlight=False,
                )
                raise
        if not watch or not as_json:
            _print(records, as_json)
        everybody = {one.node_id for one in records if one.drained}
        return 0 if everybody == set(nodes) else 1

    run(work)


def undrain(nodes: _Nodes, placement: PlacementOption = "", as_json: JsonOption = False) -> None:
    """Let sessions come to nodes again; ends a drain that is under way.

    Moves that have not frozen their worlds yet are withdrawn, the others come to
    their end.
    """

    async def work() -> int:
        async with connected(placement) as client:
            drained = await client.undrain(*nodes)
        if as_json:
            print_json({"undrained": drained})
            return 0
        for node in dict.fromkeys(nodes):
            already = "" if node in drained else " already"
            console.print(f"node {node} takes sessions{already}", markup=False, highlight=False)
        return 0

    run(work)


async def _follow(
    client: Client, nodes: list[str], watch: _Watch | None
) -> tuple[DrainRecord, ...]:
    records: tuple[DrainRecord, ...] = ()
    async for records in client.watch_drain(*nodes):
        if watch is not None:
            watch.show(records)
    return records


class _Watch:
    """Each change as a line: on stderr for people, on stdout for scripts."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown: dict[str, str] = {}

    def show(self, records: tuple[DrainRecord, ...]) -> None:
        for record in records:
            line = _line(record)
            if self._shown.get(record.node_id) == line:
                continue
            self._shown[record.node_id] = line
            if self._as_json:
                print_json_line(record)
            else:
                err_console.print(f"  {line}", markup=False, highlight=False)


def _line(record: DrainRecord) -> str:
    """One node in one line, without what changes with time alone."""
    moving = [one for one in record.left if one.move_id]
    waiting = [one for one in record.left if not one.move_id]
    parts = [f"{record.sessions_moved} moved"]
    parts += [f"{one.session_id} to {one.target_node_id}" for one in moving]
    if waiting:
        reasons = ", ".join(dict.fromkeys(one.reason for one in waiting if one.reason))
        because = f" ({reasons})" if reasons else ""
        parts.append(f"{len(waiting)} {'left' if record.ended else 'waiting'}{because}")
    if record.rounds_left:
        parts.append(f"{counted(record.rounds_left, 'round')} to go")
    return f"{record.node_id} {record.state}: {', '.join(parts)}"


def _print(records: tuple[DrainRecord, ...], as_json: bool) -> None:
    if as_json:
        print_json(records)
        return
    for record in records:
        left = f", {len(record.left)} left" if record.left else ""
        console.print(
            f"node {record.node_id} {record.state} after {human_ms(record.elapsed_ms)}: "
            f"{counted(record.sessions_moved, 'session')} moved{left}",
            markup=False,
            highlight=False,
        )
    rows = [
        (record.node_id, one.session_id, one.state, one.reason, one.message)
        for record in records
        for one in record.left
    ]
    if rows:
        columns = ("NODE", "SESSION", "STATE", "REASON", "WHY")
        print_table(columns, rows, drop=("STATE", "NODE"))
