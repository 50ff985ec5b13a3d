"""CLI: `python -m bench.fabric.constants`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.fabric.constants.report import document, summarize, table
from bench.fabric.constants.scenario import CELL, SCENARIOS
from bench.report import write

SEEDS = 5

app = typer.Typer(add_completion=False)


@app.command()
def constants(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each scenario.")] = SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
) -> None:
    """Let well-known paths cost more or less than admission believes, under tight horizons."""
    chosen = range(first_seed, first_seed + seeds)
    summaries = [summarize(CELL, scenario, chosen) for scenario in SCENARIOS]
    print(table(summaries, seeds))
    if json_path:
        write(json_path, document(summaries, seeds))
