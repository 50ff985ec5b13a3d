"""CLI: `python -m bench.fabric.drain`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.fabric.drain.demand import CELL
from bench.fabric.drain.report import document, summaries, table
from bench.report import write

SEEDS = 5

app = typer.Typer(add_completion=False)


@app.command()
def drain(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    lag_ms: Annotated[
        float, typer.Option(min=0, help="Longest time from a decision to its wire.")
    ] = CELL.lag_max_s * 1e3,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
) -> None:
    """Empty nodes in planned rounds, alone and with interactive moves in between."""
    cell = replace(CELL, lag_max_s=lag_ms / 1e3)
    made = summaries(cell, range(first_seed, first_seed + seeds))
    print(table(made, seeds))
    if json_path:
        write(json_path, document(made, cell, seeds))
