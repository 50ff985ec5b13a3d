"""Measured: what the commands on a real engine share: their options, and one run with its facts."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer

from bench.load import Load
from bench.serving.facts import started_at
from services.engine.model.config import PRESETS
from worldline.errors import WorldlineError
from worldline.telemetry import configure_logs

T = TypeVar("T")

PresetOption = Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Where a document goes.")]


@dataclass(frozen=True)
class Measured(Generic[T]):
    """What was found, when it was begun, and the share of all processors that others used."""

    found: T
    begun_at: str
    used_by_others: float


def measure(work: Coroutine[Any, Any, T]) -> Measured[T]:
    """Run it; says on stderr how long it took, and under which load.

    Raises:
        typer.BadParameter: its input was refused; the hint is the option.
    """
    configure_logs("bench", log_level="warning")
    begun_at, begun_s, load = started_at(), time.monotonic(), Load()
    try:
        found = asyncio.run(work)
    except WorldlineError as error:
        hint = f"--{error.field.rpartition('.')[2]}" if error.field else None
        raise typer.BadParameter(error.message, param_hint=hint) from error
    others = load.others()
    took_s = time.monotonic() - begun_s
    say(f"{took_s:.1f} s; load {os.getloadavg()[0]:.1f}, others used {others:.0%}")
    return Measured(found, begun_at, others)


def say(text: str) -> None:
    """Progress: never part of the tables."""
    print(text, file=sys.stderr, flush=True)
