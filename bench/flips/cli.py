"""CLI: `python -m bench.flips`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from bench.facts import commit, machine, versions
from bench.flips.battery import BLOCKS, battery
from bench.flips.report import document, table
from bench.flips.strata import flips as chosen
from bench.private import warm_session, world_of
from bench.report import write
from worldline.errors import InvalidInput

app = typer.Typer(add_completion=False)


@app.command()
def flips(
    preset: Annotated[str, typer.Option(help="The world: tiny or small.")] = "tiny",
    seed: Annotated[int, typer.Option(min=0, help="Of the world and of the flips.")] = 7,
    rounds: Annotated[int, typer.Option(min=1, help="Thirty flips each, in all strata.")] = 1,
    warm_blocks: Annotated[
        int, typer.Option(min=2, help="Blocks played before; two fill the window.")
    ] = 4,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks played after each flip.")] = BLOCKS,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
) -> None:
    """Flip single bits of a running world's caches and see who notices (paper, section 3.3).

    One thread, so that the bits do not depend on the number of cores. Exit status
    1: a flip did not do what the window's geometry says of it; 2: wrong usage.
    """
    torch.set_num_threads(1)
    try:
        world = world_of(preset)
        session = warm_session(world, seed, warm_blocks)
        plan = chosen(world.config, session.tree, seed, rounds)
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from error
    outcomes = battery(session, plan, blocks, lambda done: _say(done, len(plan)))
    print(table(outcomes))
    if json_path:
        facts = {"machine": machine(), "versions": versions(), "commit": commit()[0]}
        world_facts = {"preset": preset, "seed": seed, "warm_blocks": warm_blocks}
        write(json_path, facts | world_facts | {"flips": document(outcomes)})
    if any(one.as_expected is False for one in outcomes):
        raise typer.Exit(1)


def _say(done: int, of: int) -> None:
    """Progress, once a round: never part of the table."""
    if done % 30 == 0:
        print(f"{done} of {of} flips", file=sys.stderr, flush=True)
