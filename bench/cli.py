"""CLI: `python -m bench`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench import facts, report
from bench.load import Load
from bench.suite import REPEATS, SEED, Options
from bench.table import chosen, measure, suites

_LATEST = Path(__file__).parent / "results" / "latest.json"
#: Above it others have used the processors enough to spoil figures.
_OTHERS_MAX = 0.05
_INTERRUPTED = 130

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Rows to measure: a glob or a part of the name; may be repeated."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each race.")] = REPEATS,
    json_path: Annotated[Path, typer.Option("--json", help="Where the document goes.")] = _LATEST,
    show: Annotated[bool, typer.Option("--list", help="Show the rows and end.")] = False,
    quick: Annotated[
        bool, typer.Option(help="A small payload: tries the bench out, compares nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the payload's random bytes.")] = SEED,
) -> None:
    """Measure Worldline beside its peers; print one table and write it as JSON.

    Exit status 1: a bar was missed.
    """
    available = suites()
    specs = [spec for suite in available for spec in suite.specs]
    try:
        wanted = chosen(specs, only or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from error
    if show:
        print(report.listing([spec for spec in specs if spec.name in wanted]))
        return
    options = Options(repeats=repeats, quick=quick, seed=seed)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    load = Load()
    try:
        rows = measure(available, wanted, options, _say)
    except KeyboardInterrupt:
        _say("interrupted: nothing was written")
        raise typer.Exit(_INTERRUPTED) from None
    others = round(load.others(), 3)
    content = report.document(
        rows,
        machine={**facts.machine(), "used_by_others": others},
        versions=facts.versions(),
        commit=facts.commit(),
        started_at=started_at,
        seed=seed,
        comparable=not quick,
    )
    report.write(json_path, content)
    if quick:
        print(report.NOT_COMPARABLE)
    print(report.table(rows))
    print(report.summary(rows))
    if others > _OTHERS_MAX:
        print(f"others used {others:.0%} of the processors meanwhile: do not trust these figures")
    _say(f"written to {json_path}")
    if any(row.ok is False for row in rows):
        raise typer.Exit(1)


_BEGUN_S = time.monotonic()


def _say(text: str) -> None:
    """Progress: never part of the table."""
    print(f"{time.monotonic() - _BEGUN_S:6.1f} s  {text}", file=sys.stderr, flush=True)
