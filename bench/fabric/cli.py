"""CLI: `python -m bench.fabric`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.fabric.cell import Cell
from bench.fabric.experiment import LOADS, SEEDS, experiment
from bench.fabric.figure import draw_outcomes
from bench.fabric.incast import PAPER, incast
from bench.fabric.reference import compare
from bench.fabric.report import document, incast_table, paper_table, table
from bench.report import write
from worldline.cli.figures import check_figures, write_figure
from worldline.errors import WorldlineError

app = typer.Typer(add_completion=False)


@app.command()
def fabric(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each load and policy.")] = SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    load: Annotated[
        list[float] | None, typer.Option(min=0.1, help="Times capacity; may be repeated.")
    ] = None,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Every state is on one node, as a live session is.")
    ] = False,
    lag_ms: Annotated[
        float | None, typer.Option(min=0, help="Longest time from a decision to its wire.")
    ] = None,
    stall_ms: Annotated[
        float | None, typer.Option(min=0, help="A stall: 536 with the short timer, 2147 else.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Where a figure goes, .png or .svg (extra `figures`).")
    ] = None,
) -> None:
    """Simulate the 72-move incast experiment and decide it with the real admission core.

    The same seed gives the same table. Exit status 2: wrong usage, or no matplotlib for a figure.
    """
    try:
        check_figures([figure] if figure else [], "--figure")
    except WorldlineError as error:
        raise typer.BadParameter(error.message, param_hint="--figure") from error
    cell = Cell()
    if lag_ms is not None:
        cell = replace(cell, lag_max_s=lag_ms / 1e3)
    if stall_ms is not None:
        cell = replace(cell, stall_s=stall_ms / 1e3)
    begun_s = time.monotonic()
    chosen = range(first_seed, first_seed + seeds)
    rows = experiment(cell, load or LOADS, chosen, pinned=pinned, say=_say)
    # The paper's states were had anywhere, and the cell is fitted to it: all else is another
    # experiment.
    incasts, comparisons = [], []
    if not pinned and cell == Cell():
        incasts = [incast(cell, fan_in) for fan_in, *_ in PAPER]
        comparisons = compare(cell, chosen, _say)
    print(table(rows))
    if comparisons:
        print(f"\n{incast_table(incasts)}\n\n{paper_table(comparisons)}")
    if json_path:
        write(json_path, document(rows, comparisons, incasts, cell, pinned=pinned))
    if figure:
        write_figure(draw_outcomes(rows, "--figure"), figure)
    _say(f"{time.monotonic() - begun_s:.1f} s")


def _say(text: str) -> None:
    """Progress: never part of the table."""
    print(text, file=sys.stderr, flush=True)
