"""Command: `python -m bench.serving real`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from bench.load import Load
from bench.report import write
from bench.serving.facts import facts, started_at
from services.engine.model.config import PRESETS, TINY
from worldline.errors import WorldlineError
from worldline.telemetry import configure_logs


def real(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = TINY.name,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")] = 1,
    floor: Annotated[int, typer.Option(min=1, help="Steps that C1 blocks keep.")] = 2,
    blocks: Annotated[int, typer.Option(min=8, help="Periods of each trial.")] = 40,
    bulk_blocks: Annotated[int, typer.Option(min=1, help="Of the bulk job of a trial.")] = 6,
    trials: Annotated[int, typer.Option(min=1, help="Of each arm; the paper has 3.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first trial's.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
) -> None:
    """Run the paper's arms on one real engine: its loop, its worker's thread, its model.

    One interactive session with a period and a floor, and a finite bulk job. The
    engine first measures its quanta; both periods are chosen from them. Arms take
    turns. Times are the machine's own, so figures differ from run to run. Exit
    status 1: the arms did not come in the paper's order, or the knob gave bulk
    nothing; 2: wrong usage, or no such device.
    """
    # torch takes seconds to import, and the other commands need none.
    from bench.serving.real.proof import Plan, proof
    from bench.serving.real.report import checks, document, tables

    configure_logs("bench", log_level="warning")
    begun_at, begun_s, load = started_at(), time.monotonic(), Load()
    seeds = list(range(first_seed, first_seed + trials))
    plan = Plan(preset, device, threads, floor, blocks, bulk_blocks, seeds)
    try:
        found = asyncio.run(proof(plan, say))
    except WorldlineError as error:
        hint = f"--{error.field.rpartition('.')[2]}" if error.field else None
        raise typer.BadParameter(error.message, param_hint=hint) from error
    others = load.others()
    print(tables(found, bulk_blocks))
    if json_path:
        known = facts(begun_at, seeds)
        asked = {"preset": preset, "device": device, "threads": threads, "floor_steps": floor}
        sizes = {"periods": blocks, "bulk_blocks": bulk_blocks, "used_by_others": others}
        write(json_path, document(found, known | asked | sizes))
    took_s = time.monotonic() - begun_s
    say(f"{took_s:.1f} s; load {os.getloadavg()[0]:.1f}, others used {others:.0%}")
    if not all(check.met for check in checks(found)):
        raise typer.Exit(1)


def say(text: str) -> None:
    """Progress: never part of the tables."""
    print(text, file=sys.stderr, flush=True)
