"""CLI: `python -m bench.lossy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from bench.facts import commit, machine, versions
from bench.lossy.figure import draw_divergence
from bench.lossy.report import table
from bench.lossy.row import rows
from bench.lossy.run import run
from bench.private import world_of
from bench.report import write
from worldline.cli.figures import check_figures, write_figure
from worldline.errors import WorldlineError

#: Those that the figures in docs/ are of.
SEEDS = 3

app = typer.Typer(add_completion=False)


@app.command()
def lossy(
    preset: Annotated[str, typer.Option(help="The world: tiny or small.")] = "tiny",
    seeds: Annotated[int, typer.Option(min=1, help="Worlds, from the first seed on.")] = SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 1,
    warm_blocks: Annotated[
        int, typer.Option(min=2, help="Blocks played before; two fill the window.")
    ] = 4,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks played after.")] = 12,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Where a figure goes, .png or .svg (extra `figures`).")
    ] = None,
) -> None:
    """Send less than a running world's state, in every known way, and see what its viewer gets.

    One thread, so that the bits do not depend on the number of cores. Exit status
    1: what should be exact was not; 2: wrong usage, or no matplotlib for a
    figure.
    """
    torch.set_num_threads(1)
    try:
        check_figures([figure] if figure else [], "--figure")
        world = world_of(preset)
    except WorldlineError as error:
        raise typer.BadParameter(
            error.message, param_hint=f"--{error.field or 'preset'}"
        ) from error
    outcomes = [
        one
        for seed in range(first_seed, first_seed + seeds)
        for one in run(world, seed, warm_blocks, blocks, _say)
    ]
    found = rows(outcomes)
    print(table(found))
    if json_path:
        facts = {"machine": machine(), "versions": versions(), "commit": commit()[0]}
        given = {"preset": preset, "warm_blocks": warm_blocks, "blocks": blocks}
        every = [one.to_json() for one in outcomes]
        content = facts | given | {"rows": [row.to_json() for row in found], "outcomes": every}
        write(json_path, content)
    if figure:
        write_figure(draw_divergence(found, "--figure"), figure)
    if not all(row.is_exact for row in found if row.family in ("exact", "rebuild")):
        raise typer.Exit(1)


def _say(text: str) -> None:
    """Progress: never part of the table."""
    print(text, file=sys.stderr, flush=True)
