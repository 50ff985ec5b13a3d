"""Moves: make one and watch it, or somebody else's; list those made."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from worldline.cli.common import (
    JsonOption,
    MoveArgument,
    PlacementOption,
    SessionArgument,
    TimeoutOption,
    connected,
    run,
)
from worldline.cli.listings import print_moves
from worldline.cli.output import (
    TIER_DROPPED,
    console,
    err_console,
    hex_digest,
    human_bytes,
    move_exit_status,
    move_jsonable,
    print_json,
    print_json_line,
    print_table,
)
from worldline.cli.quantities import duration_ms, human_ms
from worldline.cli.watching import Watch
from worldline.errors import DeadlineExceeded, Unavailable, WorldlineError
from worldline.sdk import Client, MovePhase, MoveRecord, PushStats
from worldline.sdk import Progress as MoveProgress

#: How long a client that leaves asks for the id of the move that it leaves behind.
_LAST_LOOK_S = 2.0


def move(
    session_id: SessionArgument,
    target: Annotated[
        str, typer.Argument(metavar="NODE", help="Where to; default: any node.")
    ] = "",
    saves: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="What the move is worth, as time for which the world may stand still: 300ms, "
            "1.5s. One that costs more is rejected (SAVES_TOO_LITTLE). Default: it is ordered, "
            "whatever it saves.",
        ),
    ] = "",
    timeout_s: TimeoutOption = 120.0,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Say how long each step takes, the wait for the wire too, how many bytes are sent "
            "and how fast; with --json in lines, the record last.",
        ),
    ] = False,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move a session to another node; shows phases as they happen and the verdict.

    A move may wait for its wire while the world plays on; one that waited in
    vain is rejected before it froze (WIRE_TOO_LATE). A reject says when to ask
    again, where that makes sense.

    Exit status 0 only when it committed, 3 when it was rejected.
    """

    async def work() -> int:
        saves_ms = duration_ms(saves, "--saves") if saves else 0.0
        async with connected(placement, timeout_s) as client:
            session = await client.session(session_id)
            try:
                with Watch(as_json=as_json) if watch else ProgressView(quiet=as_json) as view:
                    record = await session.move(target, view.show, saves_ms=saves_ms)
            except (asyncio.CancelledError, DeadlineExceeded, Unavailable):
                await _say_that_it_goes_on(client, session_id)
                raise
        return _answer(record, as_json=as_json, in_lines=watch)

    run(work)


def watch_move(
    move_id: MoveArgument,
    timeout_s: TimeoutOption = 120.0,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Watch a move that somebody else has begun; its record where it is over.

    Shows what `worldline move --watch` does: each step and how long it takes, the
    bytes and how fast. Leaving stops nothing.

    Exit status 0 only when it committed, 3 when it was rejected.
    """

    async def work() -> int:
        async with connected(placement, timeout_s) as client:
            try:
                with Watch(as_json=as_json) as view:
                    record = await client.watch_move(move_id, view.show)
            except (asyncio.CancelledError, DeadlineExceeded, Unavailable):
                again = f"{move_id} goes on without you: `worldline watch {move_id}`"
                err_console.print(again, markup=False, highlight=False)
                raise
        return _answer(record, as_json=as_json, in_lines=True)

    run(work)


def moves(
    session_id: Annotated[str, typer.Option("--session", help="Only this session's.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """List moves, newest first."""

    async def work() -> int:
        async with connected(placement) as client:
            records = await client.moves(session_id, limit)
            if session_id and not records:
                await client.session(session_id)  # unknown is not the same as never moved
        if as_json:
            print_json([move_jsonable(record) for record in records])
        else:
            print_moves(records)
        return 0

    run(work)


def _answer(record: MoveRecord, *, as_json: bool, in_lines: bool) -> int:
    """Print how a move ended; its exit status."""
    if as_json:
        show = print_json_line if in_lines else print_json
        show(move_jsonable(record))
    else:
        print_record(record)
        console.print(f"\nsee it with: worldline trace {record.move_id}", highlight=False)
    return move_exit_status(record)


async def _say_that_it_goes_on(client: Client, session_id: str) -> None:
    """Placement drives a move to its end, whoever watches: a client that leaves must know."""
    ask = f"`worldline moves --session {session_id}`"
    latest: tuple[MoveRecord, ...] = ()
    with contextlib.suppress(WorldlineError, TimeoutError):
        async with asyncio.timeout(_LAST_LOOK_S):
            latest = await client.moves(session_id, limit=1)
    running = [record.move_id for record in latest if record.outcome == "running"]
    text = f"{running[0]} goes on without you: {ask}" if running else f"what became of it: {ask}"
    err_console.print(text, markup=False, highlight=False)


class ProgressView:
    """Phases as lines and the push as a bar, on stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TransferSpeedColumn(),
            console=err_console,
            disable=quiet or not err_console.is_terminal,
            transient=True,
        )
        self._quiet = quiet
        self._push: TaskID | None = None
        self._phase: MovePhase | None = None

    def __enter__(self) -> ProgressView:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def show(self, progress: MoveProgress) -> None:
        """For `on_progress`."""
        if progress.phase is not self._phase:
            self._phase = progress.phase
            if not self._quiet:
                name = progress.phase.name.lower().replace("_", " ")
                self._bar.console.print(f"  {name}", highlight=False)
        if progress.total_bytes:
            if self._push is None:
                self._push = self._bar.add_task("push", total=progress.total_bytes)
            self._bar.update(self._push, completed=progress.sent_bytes)


def print_record(record: MoveRecord) -> None:
    """Outcome, verdict, phases in ms and digests of one move."""
    reason = f" ({record.reason})" if record.reason else ""
    console.print(f"move {record.move_id}: {record.outcome}{reason}", markup=False)
    if record.target_engine_id:
        console.print(f"from {record.source_engine_id} to {record.target_engine_id}", markup=False)
    if record.tier_dropped and record.committed:
        console.print(TIER_DROPPED)
    if record.verdict is not None:
        console.print(f"verdict {record.verdict.label}: {record.verdict.explanation}", markup=False)
        if record.verdict.retry_after_ms:
            console.print(f"ask again in {human_ms(record.verdict.retry_after_ms)}", markup=False)
    if record.failure is not None:
        where = f" [{record.failure.leaf}]" if record.failure.leaf else ""
        console.print(
            f"failure {record.failure.reason}{where}: {record.failure.message}", markup=False
        )
    if record.timings_ms:
        rows = [(name, f"{duration_ms:.1f}") for name, duration_ms in record.timings_ms.items()]
        if record.committed:
            rows.append(("frozen", f"{record.frozen_ms:.1f}"))
        print_table(("PHASE", "MS"), rows)
    stats = record.push_stats
    if stats is not None and stats.wire_bytes:
        console.print(
            f"wire {human_bytes(stats.wire_bytes)} in {stats.chunks} chunks of "
            f"{human_bytes(stats.chunk_bytes)}, {human_bytes(stats.rate_bytes_per_s)}/s, "
            f"lanes {', '.join(stats.lanes) or 'unknown'}{_blank(stats)}",
            markup=False,
        )
    if record.committed:
        equal = "equal" if record.source_digest == record.target_digest else "DIFFERENT"
        console.print(
            f"digests source {hex_digest(record.source_digest)}, "
            f"target {hex_digest(record.target_digest)}: {equal}"
        )


def _blank(stats: PushStats) -> str:
    return f"; {human_bytes(stats.blank_bytes)} of zeros stayed" if stats.blank_bytes else ""
