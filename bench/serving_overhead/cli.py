"""CLI: `python -m bench.serving_overhead`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.facts import commit, machine, versions
from bench.load import Load
from bench.report import document, summary, table, write
from bench.row import Row
from bench.serving_overhead.report import Side, rows
from bench.serving_overhead.served import Served
from services.engine.model.config import TINY, WorldConfig
from worldline.telemetry import configure_logs, start

_FLUSH_S = 5.0
#: Of the quanta so many fewer are handed over by themselves: a median of them is enough.
_HANDED_PART = 4

#: `tiny` with a tenth of its work: more quanta in less time, and the same layer around them.
SLIVER = replace(
    TINY, name="sliver", layers=1, action_layers=1, heads=1, rows=4, cols=4, ffn_dim=64
)


class Preset(StrEnum):
    """What is computed."""

    TINY = "tiny"
    SLIVER = "sliver"


CONFIGS: dict[Preset, WorldConfig] = {Preset.TINY: TINY, Preset.SLIVER: SLIVER}

app = typer.Typer(add_completion=False)


@app.command()
def serving_overhead(
    preset: Annotated[
        Preset, typer.Option(help="tiny, or sliver: a tenth of its work.")
    ] = Preset.SLIVER,
    quanta: Annotated[int, typer.Option(min=8, help="Served quanta; as many bare.")] = 20_000,
    sessions: Annotated[int, typer.Option(min=1, max=64, help="Sessions at once.")] = 1,
    turns: Annotated[int, typer.Option(min=1, help="Of each side, one after the other.")] = 50,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
) -> None:
    """Time what the serving layer adds to a quantum: the loop, the worker's thread, the sessions.

    The bare model and the served one take turns in one process and one thread.
    No gRPC: what a stream does to a block is done while the next one is computed.
    Exit status 1: the bar was missed.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    load = Load()
    found = asyncio.run(_measured(CONFIGS[preset], quanta, sessions, turns))
    others = load.others()
    print(table(found))
    _say(f"{summary(found)}; load {os.getloadavg()[0]:.1f}, others used {others:.0%}")
    if json_path:
        content = document(
            found,
            machine=machine() | {"used_by_others": others},
            versions=versions(),
            commit=commit(),
            started_at=started_at,
            seed=0,
            comparable=quanta >= 20_000,
        )
        content |= {"preset": preset.value, "quanta": quanta, "sessions": sessions}
        write(json_path, content)
    if any(row.ok is False for row in found):
        raise typer.Exit(1)


async def _measured(config: WorldConfig, quanta: int, sessions: int, turns: int) -> list[Row]:
    blocks = -(-quanta // (config.quanta_per_block * turns))
    # Whole blocks of every session, in every turn.
    blocks = -(-blocks // sessions) * sessions
    bare_side, handed_side, served_side = Side(), Side(), Side()
    with _telemetry():
        served = Served(config, sessions)
        async with served.running():
            await served.bare_turn(blocks)
            await served.served_turn(blocks)
            for turn in range(turns):
                await served.bare_turn(blocks)
                _take(served, bare_side)
                await served.handed_turn(max(1, blocks // _HANDED_PART))
                _take(served, handed_side)
                served_side.loop_cpu.append(await served.served_turn(blocks))
                _take(served, served_side)
                if (turn + 1) % 10 == 0:
                    _say(f"turn {turn + 1} of {turns}")
    return rows(bare_side, handed_side, served_side, turns)


def _take(served: Served, side: Side) -> None:
    side.passes += served.stamps.passes_ns()
    side.gaps += served.stamps.gaps_ns()
    side.block_gaps += served.stamps.block_gaps_ns()
    side.spans.append(served.stamps.span_ns() / len(served.stamps.begun))
    side.gaps_cpu += served.stamps.gaps_cpu_ns()


@contextmanager
def _telemetry() -> Iterator[None]:
    """Metrics and logs as an engine has them; the log is written, and goes nowhere."""
    with Path(os.devnull).open("w") as nowhere:
        with redirect_stderr(nowhere):
            telemetry = start("engine", log_format="json", metrics_listen="127.0.0.1:0")
        try:
            yield
        finally:
            telemetry.shutdown(_FLUSH_S)
            configure_logs("bench")


def _say(text: str) -> None:
    """Progress: never part of the table."""
    print(text, file=sys.stderr, flush=True)
