"""CLI: `python -m bench.decisions`."""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench.decisions.parts import Part, moment
from bench.decisions.report import rows
from bench.decisions.run import Run, Timings
from bench.decisions.scene import Size
from bench.facts import commit, machine, versions
from bench.report import document, summary, table, write

_PROFILE_LINES = 30

app = typer.Typer(add_completion=False)


@app.command()
def decisions(
    nodes: Annotated[int, typer.Option(min=8, help="Nodes of the fleet.")] = Size().nodes,
    sessions: Annotated[
        int, typer.Option(min=1, help="Sessions in the directory.")
    ] = Size().sessions,
    count: Annotated[int, typer.Option(min=1, help="Decisions of each repeat.")] = 2_000,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats, after one that warms up.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the fleet and of the offers.")] = 1,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where a document goes.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Where the time goes; its rates mean nothing.")
    ] = False,
) -> None:
    """Time move decisions: placement's choice and admission's answer, in one process.

    Exit status 1: a bar was missed.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    size = Size(nodes, sessions)
    if size.nodes * 12 < size.sessions:
        raise typer.BadParameter("more sessions than the nodes have room for", param_hint="--nodes")
    run = Run(size, seed)
    _say(f"{nodes} nodes, {sessions} sessions, {run.paths} measured paths")
    learning = _timed_learning(run)
    runs = _profiled(run, count) if profile else _played(run, count, repeats)
    found = rows(runs, learning)
    print(table(found))
    _say(summary(found))
    if json_path:
        content = document(
            found,
            machine=machine(),
            versions=versions(),
            commit=commit(),
            started_at=started_at,
            seed=seed,
            comparable=size == Size() and not profile,
        )
        write(json_path, content | {"nodes": nodes, "sessions": sessions, "count": count})
    if any(row.ok is False for row in found):
        raise typer.Exit(1)


def _played(run: Run, count: int, repeats: int) -> list[Timings]:
    """The first is not counted: moves begin and none has ended. As in a service, what was made
    at the start is not looked at for garbage again and again.
    """
    run.play(count)
    gc.collect()
    gc.freeze()
    try:
        runs = []
        for number in range(repeats):
            runs.append(run.play(count))
            _say(f"repeat {number + 1} of {repeats}")
        return runs
    finally:
        gc.unfreeze()


def _profiled(run: Run, count: int) -> list[Timings]:
    run.play(count)
    profiler = cProfile.Profile()
    timings = profiler.runcall(run.play, count)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(_PROFILE_LINES)
    return [timings]


def _timed_learning(run: Run) -> Part:
    learning = Part()
    begun = moment()
    run.scene.learn()
    learning.since(begun)
    return learning


def _say(text: str) -> None:
    """Progress: never part of the table."""
    print(text, file=sys.stderr, flush=True)
