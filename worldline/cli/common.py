"""Common options and the runner that every command shares."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from worldline.cli.output import exit_status, print_error
from worldline.cli.rundir import find_cluster
from worldline.errors import WorldlineError
from worldline.sdk import Client

PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="HOST:PORT",
        help="Placement's address; default: WORLDLINE_PLACEMENT, or the local cluster's.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Run directory of the local cluster; default: one per user."),
]


def run(work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a command's coroutine; its result is the exit status.

    Errors of ours become one line on stderr and a status that tells their kind.
    """
    try:
        status = asyncio.run(work())
    except WorldlineError as error:
        print_error(error)
        raise typer.Exit(exit_status(error)) from None
    if status:
        raise typer.Exit(status)


def placement_address(given: str) -> str:
    """Argument over environment over the local cluster's file.

    Raises:
        NotFound: none of them names a placement.
    """
    return given or os.environ.get("WORLDLINE_PLACEMENT", "") or find_cluster().placement_address


@contextlib.asynccontextmanager
async def connected(placement: str, **limits: float) -> AsyncIterator[Client]:
    """A client to the placement that `placement_address` finds."""
    async with Client(placement_address(placement), **limits) as client:  # type: ignore[arg-type]
        yield client
