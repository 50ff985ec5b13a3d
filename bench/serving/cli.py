"""CLI: `python -m bench.serving`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.report import write
from bench.serving.ablation import ablation
from bench.serving.cell import FULL_STEPS, Cell
from bench.serving.cost import BUDGET_US, costs, table
from bench.serving.facts import facts, started_at
from bench.serving.figure import draw
from bench.serving.placement import placement
from bench.serving.real.command import real
from bench.serving.real.residents_command import residents
from bench.serving.report import Findings, bars, document, tables
from bench.serving.rungs import rungs
from bench.serving.table4 import table4
from bench.serving.trials import SEEDS
from worldline.cli.figures import check_figures, write_figure
from worldline.errors import WorldlineError

app = typer.Typer(add_completion=False, no_args_is_help=True)

Seeds = Annotated[int, typer.Option(min=1, help="Trials of each cell; the paper has 3.")]
Json = Annotated[Path | None, typer.Option("--json", help="Where a document goes.")]


@app.callback()
def serving() -> None:
    """The engine's schedule: simulated beside others, on a real engine, and what it costs."""


app.command()(real)
app.command()(residents)


@app.command()
def simulate(
    seeds: Seeds = SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    length_s: Annotated[
        float, typer.Option(min=30, help="Simulated seconds of each cell; the paper has 600.")
    ] = 600.0,
    bulk_steps: Annotated[
        int, typer.Option(min=1, max=FULL_STEPS, help="Denoising steps of a bulk block.")
    ] = Cell().bulk_steps,
    json_path: Json = None,
    figure: Annotated[
        Path | None, typer.Option(help="Where a figure goes, .png or .svg (extra `figures`).")
    ] = None,
) -> None:
    """Simulate the paper's serving cells; the engine's own code decides in one of the arms.

    The same seeds give the same tables. Exit status 1: a figure of the paper was
    not reproduced; 2: wrong usage, or no matplotlib for a figure.
    """
    try:
        check_figures([figure] if figure else [], "--figure")
    except WorldlineError as error:
        raise typer.BadParameter(error.message, param_hint="--figure") from error
    begun_at, begun_s = started_at(), time.monotonic()
    chosen = range(first_seed, first_seed + seeds)
    findings = _findings(Cell(length_s=length_s, bulk_steps=bulk_steps), chosen)
    print(tables(findings))
    if json_path:
        write(json_path, document(findings, facts(begun_at, list(chosen))))
    if figure:
        write_figure(draw(findings.table4, findings.rungs, "--figure"), figure)
    _say(f"{time.monotonic() - begun_s:.1f} s")
    if not all(bar.met for bar in bars(findings)):
        raise typer.Exit(1)


@app.command()
def cost(
    decisions: Annotated[int, typer.Option(min=100, help="Of each number of sessions.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the sessions' phases.")] = 0,
    json_path: Json = None,
) -> None:
    """Measure what one decision costs: claims of all sessions, choice and steps.

    Exit status 1: the median of some number of sessions is above the serving
    layer's 0.2 ms.
    """
    begun_at = started_at()
    rows = costs(decisions, seed)
    print(table(rows))
    if json_path:
        document = {**facts(begun_at, [seed]), "budget_us": BUDGET_US}
        write(json_path, {**document, "rows": [row.to_json() for row in rows]})
    if not all(row.met for row in rows):
        raise typer.Exit(1)


def _findings(cell: Cell, seeds: Sequence[int]) -> Findings:
    return Findings(
        table4=table4(cell, seeds, _say),
        rungs=rungs(cell, seeds, _say),
        placement=placement(cell, seeds, _say),
        ablation=ablation(cell, seeds, _say),
    )


def _say(text: str) -> None:
    """Progress: never part of the tables."""
    print(text, file=sys.stderr, flush=True)
