"""Command: `python -m bench.serving residents`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from bench.report import write
from bench.serving.facts import facts
from bench.serving.real.measured import (
    DeviceOption,
    JsonOption,
    PresetOption,
    ThreadsOption,
    measure,
    say,
)
from services.engine.model.config import TINY


def residents(
    preset: PresetOption = TINY.name,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
    period_ms: Annotated[float, typer.Option(min=1.0, help="Of every session.")] = 400.0,
    periods: Annotated[int, typer.Option(min=8, help="That each number plays for.")] = 50,
    most: Annotated[int, typer.Option(min=1, help="Sessions to try at most.")] = 16,
    missed_percent: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Of its blocks that a session may miss.")
    ] = 1.0,
    guard_band: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="What admission leaves free of a period.")
    ] = 0.05,
    json_path: JsonOption = None,
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

    allowed = missed_percent / 100
    question = Question(preset, device, threads, period_ms, periods, most, allowed, guard_band)
    made = measure(ask(question, say))
    print(table(made.found, question))
    if json_path:
        known = facts(made.begun_at, []) | {"used_by_others": made.used_by_others}
        write(json_path, known | {"question": asdict(question)} | made.found.to_json())
    if any(one.admitted and not one.within(allowed) for one in made.found.tried):
        raise typer.Exit(1)
