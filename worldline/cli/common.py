"""Common options and the runner that every command shares."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from worldline.cli.main import INTERRUPTED, TERMINATED
from worldline.cli.output import err_console, exit_status, print_error
from worldline.cli.rundir import find_cluster
from worldline.errors import InvalidInput, WorldlineError
from worldline.fields import positive
from worldline.sdk import Client

_HOST_PORT = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
_PORT_MAX = 65_535
#: A call that takes longer to connect is explained.
_SAY_WAITING_S = 1.0
#: What a command without `TimeoutOption` waits for an outcome; none of them asks for one.
_TIMEOUT_S = 120.0

PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="HOST:PORT",
        help="Placement's address; default: WORLDLINE_PLACEMENT, or the local cluster's.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DevicesOption = Annotated[
    str,
    typer.Option(
        help="Where the nodes' slots and engines are, in turn, separated by commas: cpu, cuda:0."
    ),
]
ModelsOption = Annotated[
    str,
    typer.Option(
        metavar="MODULE:CLASS,...",
        help="Models of other packages that every engine serves beside the built-in presets; "
        "see `worldline check-engine`.",
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout-s", help="Longest wait for the outcome.")]
SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="Its id, as `worldline sessions` lists it.")
]
MoveArgument = Annotated[
    str, typer.Argument(metavar="MOVE", help="Its id, as `worldline moves` lists it.")
]
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Run directory of the local cluster; default: one per user."),
]


def model_names(models: str) -> tuple[str, ...]:
    """The names in a `ModelsOption`. Whether they name models, each engine says."""
    return tuple(name.strip() for name in models.split(",") if name.strip())


def run(work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a command's coroutine; its result is the exit status.

    Errors of ours become one line on stderr and a status that tells their kind. SIGINT and SIGTERM
    cancel it, so that it cleans up behind itself.
    """
    try:
        status = asyncio.run(_unless_terminated(work()))
    except WorldlineError as error:
        print_error(error)
        raise typer.Exit(exit_status(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if status:
        raise typer.Exit(status)


async def _unless_terminated(work: Coroutine[Any, Any, int]) -> int:
    """`asyncio.run` does the same for SIGINT. A second SIGTERM changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        return await work  # signals are the main thread's alone
    loop, working = asyncio.get_running_loop(), asyncio.ensure_future(work)
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        if not terminated:
            terminated = True
            working.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await working
    except asyncio.CancelledError:
        if terminated:
            return TERMINATED
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def placement_address(given: str) -> str:
    """Argument over environment over the local cluster's file.

    Raises:
        NotFound: none of them names a placement.
        InvalidInput: what names one is no address.
    """
    named = given or os.environ.get("WORLDLINE_PLACEMENT", "")
    return host_port(named, "placement") if named else find_cluster().placement_address


def host_port(text: str, field: str) -> str:
    """`text` if it is HOST:PORT; an IPv6 host stands in brackets.

    Raises:
        InvalidInput: it is not.
    """
    match = _HOST_PORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= _PORT_MAX:
        raise InvalidInput(
            f"{field} must be HOST:PORT with a port of 1 to {_PORT_MAX}, for example "
            f"127.0.0.1:7400; got {text!r}",
            field=field,
        )
    return text


@contextlib.asynccontextmanager
async def connected(placement: str, timeout_s: float = _TIMEOUT_S) -> AsyncIterator[Client]:
    """A client to the placement that `placement_address` finds; says when it has to wait.

    `timeout_s` is what `TimeoutOption` was given: the longest wait for an outcome.

    Raises:
        InvalidInput: it is not above 0.
    """
    limit_s = positive(timeout_s, "--timeout-s")
    address = placement_address(placement)
    said = False

    def on_waiting(waited_s: float) -> None:
        nonlocal said
        if not said and waited_s >= _SAY_WAITING_S:
            said = True
            err_console.print(f"waiting for placement at {address} ...", highlight=False)

    async with Client(address, on_waiting=on_waiting, move_timeout_s=limit_s) as client:
        yield client
