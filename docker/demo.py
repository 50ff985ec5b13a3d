"""Demo: a world in containers that is moved, whose node is cut off, and whose neighbour is killed.

`python docker/demo.py`, or `make compose-demo`. Exit status 0 only if every check held.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Annotated

import scenes
import typer
import wire
from fleet import NODES, Fleet
from viewer import Viewer

from worldline.cli.common import JsonOption, run
from worldline.cli.moves import print_record
from worldline.cli.output import console, err_console, move_jsonable, print_json
from worldline.errors import Unavailable, WorldlineError
from worldline.sdk import Client


def demo(
    image: Annotated[str, typer.Option(help="What the services run.")] = "worldline:cpu",
    as_json: JsonOption = False,
) -> None:
    """Three nodes in containers: move a world, cut its target off, kill a node, leave nothing.

    Needs a Docker engine on this machine, Compose, root and tc (to make a wire slow), and the image
    (`make images`). Exit status 0 only if every check held, 5 where it cannot be shown here.
    """

    async def work() -> int:
        began_s = time.monotonic()

        def say(text: str) -> None:
            if not as_json:
                clock = f"{time.monotonic() - began_s:6.1f} s  "
                err_console.print(clock + text, markup=False, highlight=False)

        reason = wire.why_not()
        if reason is not None:
            raise Unavailable(f"a move cannot be cut in its middle here: {reason}", reason="NO_TC")
        fleet = Fleet(image)
        await fleet.check()
        stage = await _show(fleet, say)
        left = await fleet.leftovers()
        stage.checks.add("nothing is left behind", not left, ", ".join(left))
        _report(stage, time.monotonic() - began_s, as_json)
        return 0 if stage.checks.all_held else 1

    run(work)


async def _show(fleet: Fleet, say: scenes.Say) -> scenes.Stage:
    try:
        say(f"starting {fleet.project} on {fleet.net}.0/24, placement at {fleet.placement_address}")
        await fleet.up()
        client = Client(fleet.placement_address, timeout_s=30.0, block_timeout_s=120.0)
        async with client:
            stage = scenes.Stage(fleet, client, say)
            try:
                await _play(stage)
            except WorldlineError:
                await _explain(fleet)
                raise
        return stage
    finally:
        say("removing everything")
        await fleet.down()


async def _play(stage: scenes.Stage) -> None:
    await scenes.wait_for_nodes(stage)
    stage.say("three nodes serve")
    world = await stage.open(NODES[0])
    stage.say(f"world {world.session_id} plays on {NODES[0]}")
    async with Viewer(world) as viewer:
        await scenes.across(stage, viewer)
        await scenes.cut_off(stage, viewer)
        await scenes.killed(stage, viewer)
    await scenes.revived(stage)
    await scenes.within(stage)
    await scenes.twin_of(stage, viewer.blocks)
    await scenes.stopped(stage)


async def _explain(fleet: Fleet) -> None:
    """What the services said last, where something went wrong."""
    with contextlib.suppress(WorldlineError):
        sys.stderr.write(await fleet.logs())


def _report(stage: scenes.Stage, total_s: float, as_json: bool) -> None:
    results = stage.checks.results
    if as_json:
        checks = [{"name": name, "held": held, "found": found} for name, held, found in results]
        print_json(
            {
                "held": stage.checks.all_held,
                "checks": checks,
                "moves": [move_jsonable(record) for record in stage.records],
                "total_s": total_s,
            }
        )
        return
    for record in stage.records:
        console.print()
        print_record(record)
    console.print()
    for name, held, found in results:
        mark = "[green]held  [/]" if held else "[red]BROKEN[/]"
        console.print(f"{mark} {name}{f' ({found})' if found else ''}", highlight=False)
    console.print(f"total: {total_s:.1f} s", highlight=False)


if __name__ == "__main__":
    typer.run(demo)
