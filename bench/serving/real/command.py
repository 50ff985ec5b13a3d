"""Command: `python -m bench.serving real`."""

from __future__ import annotations

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


def real(
    preset: PresetOption = TINY.name,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
    floor: Annotated[int, typer.Option(min=1, help="Steps that C1 blocks keep.")] = 2,
    blocks: Annotated[int, typer.Option(min=8, help="Periods of each trial.")] = 40,
    bulk_blocks: Annotated[int, typer.Option(min=1, help="Of the bulk job of a trial.")] = 6,
    trials: Annotated[int, typer.Option(min=1, help="Of each arm; the paper has 3.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first trial's.")] = 0,
    json_path: JsonOption = None,
) -> None:
    """Run the paper's arms on one real engine: its loop, its worker's thread, its model.

    One interactive session with a period and a floor, and a finite bulk job. The
    engine first measures its quanta; both periods are chosen from them. Arms take
    turns. Times are the machine's own, so figures differ from run to run. Exit
    status 1: the arms did not come in the paper's order, or the knob gave bulk
    nothing; 2: wrong usage, or no such device.
    """
    # torch takes seconds to import, and the other commands need none.
    from bench.serving.real.proof import Plan, proof
    from bench.serving.real.report import checks, document, tables

    seeds = list(range(first_seed, first_seed + trials))
    plan = Plan(preset, device, threads, floor, blocks, bulk_blocks, seeds)
    made = measure(proof(plan, say))
    print(tables(made.found, bulk_blocks))
    if json_path:
        known = facts(made.begun_at, seeds) | {"used_by_others": made.used_by_others}
        asked = {"preset": preset, "device": device, "threads": threads, "floor_steps": floor}
        sizes = {"periods": blocks, "bulk_blocks": bulk_blocks}
        write(json_path, document(made.found, known | asked | sizes))
    if not all(check.met for check in checks(made.found)):
        raise typer.Exit(1)
