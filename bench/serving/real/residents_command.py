"""Command: `python -m bench.serving residents`."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bench.load import Load
from bench.report import write
from bench.serving.facts import facts, started_at
from bench.serving.real.command import say
from services.engine.model.config import PRESETS, TINY
from worldline.errors import WorldlineError
from worldline.telemetry import configure_logs


def residents(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = TINY.name,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")] = 1,
    period_ms: Annotated[float, typer.Option(min=1.0, help="Of every session.")] = 400.0,
    periods: Annotated[int, typer.Option(min=8, help="That each number plays for.")] = 50,
    most: Annotated[int, typer.Option(min=1, help="Sessions to try at most.")] = 16,
    missed_percent: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Of its blocks that a session may miss.")
    ] = 1.0,
    guard_band: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="What admission leaves free of a period.")
    ] = 0.05,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
) -> None:
    """Find how many sessions of one period keep it side by side on one real engine.

    The engine's own loop, worker and model, in private memory. Quanta are
    measured first; then one session plays, two, three, until a session misses
    more than allowed or skips a release. Beside each: whether admission would
    take it. Exit status 1: admission would take one that is not kept; 2:
    wrong usage, or no such device.
    """
    # torch takes seconds to import, and the other commands need none.
    from bench.serving.real.residents import Question, table
    from bench.serving.real.residents import residents as ask

    configure_logs("bench", log_level="warning")
    begun_at, begun_s, load = started_at(), time.monotonic(), Load()
    allowed = missed_percent / 100
    question = Question(preset, device, threads, period_ms, periods, most, allowed, guard_band)
    try:
        answer = asyncio.run(ask(question, say))
    except WorldlineError as error:
        hint = f"--{error.field.rpartition('.')[2]}" if error.field else None
        raise typer.BadParameter(error.message, param_hint=hint) from error
    others = load.others()
    print(table(answer, question))
    if json_path:
        known = facts(begun_at, []) | {"used_by_others": others}
        write(json_path, known | {"question": asdict(question)} | answer.to_json())
    took_s = time.monotonic() - begun_s
    say(f"{took_s:.1f} s; load {os.getloadavg()[0]:.1f}, others used {others:.0%}")
    if any(one.admitted and not one.within(allowed) for one in answer.tried):
        raise typer.Exit(1)
