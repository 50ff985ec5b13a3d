"""Top: the whole cluster on one screen, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from worldline.cli.common import JsonOption, PlacementOption, connected, placement_address, run
from worldline.cli.output import console, error_line, print_json_line
from worldline.cli.quantities import duration_ms
from worldline.cli.stopping import stopping, unless_stopped
from worldline.cli.top_frame import frame
from worldline.cli.top_snapshot import Snapshot, take
from worldline.errors import DeadlineExceeded, InvalidInput, Unavailable
from worldline.sdk import Client

#: More often than that would tell placement more than it tells.
_INTERVAL_MS_MIN = 100.0
#: A placement that does not answer within this is said to be away.
_PATIENCE_S = 2.0

_Show = Callable[[Snapshot], None]


def top(
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Between two refreshes: 500ms, 2s.")
    ] = "1s",
    once: Annotated[
        bool, typer.Option("--once", help="One frame, then exit; so where nobody looks at it.")
    ] = False,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Watch the whole cluster: moves under way, nodes, sessions and recent rejects.

    With --json one JSON object a line and refresh, until Ctrl-C; without it,
    where stdout is no terminal, one frame. A placement that goes away is waited
    for.

    Where the terminal is narrow columns are left out: `--json` has all.
    """

    async def work() -> int:
        interval_s = _interval_s(interval)
        if once or not (as_json or sys.stdout.isatty()):
            async with connected(placement) as client:
                _print(await take(client, time.monotonic()), as_json)
            return 0
        address = placement_address(placement)
        with _lines() if as_json else _screen() as show:
            async with (
                stopping() as stop,
                Client(address, timeout_s=_PATIENCE_S, connect_patience_s=_PATIENCE_S) as client,
            ):
                await follow(client, interval_s, show, stop)
        return 0

    run(work)


async def follow(client: Client, interval_s: float, show: _Show, stop: asyncio.Event) -> None:
    """Show the cluster every `interval_s` until `stop`; placement may come and go."""
    snapshot = Snapshot(client.placement_address)
    while not stop.is_set():
        due_s = time.monotonic() + interval_s
        try:
            taken = await unless_stopped(stop, take(client, time.monotonic()))
            snapshot = snapshot if taken is None else taken
        except (Unavailable, DeadlineExceeded) as error:
            snapshot = snapshot.after(error_line(error))
        if not stop.is_set():
            show(snapshot)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                    await stop.wait()


@contextlib.contextmanager
def _screen() -> Iterator[_Show]:
    """Frames in place of each other on a screen of their own: the terminal is as before after."""
    screen = Console()
    with Live(console=screen, screen=True, auto_refresh=False) as live:

        def show(snapshot: Snapshot) -> None:
            size = screen.size
            live.update(frame(time.monotonic(), snapshot, size.width, size.height), refresh=True)

        yield show


@contextlib.contextmanager
def _lines() -> Iterator[_Show]:
    yield lambda snapshot: print_json_line(snapshot.jsonable(time.monotonic()))


def _print(snapshot: Snapshot, as_json: bool) -> None:
    now_s = time.monotonic()
    if as_json:
        print_json_line(snapshot.jsonable(now_s))
    else:
        console.print(frame(now_s, snapshot, console.width))


def _interval_s(text: str) -> float:
    interval_ms = duration_ms(text, "--interval")
    if interval_ms < _INTERVAL_MS_MIN:
        raise InvalidInput(
            f"--interval is {_INTERVAL_MS_MIN:g}ms at least; got {text!r}", field="--interval"
        )
    return interval_ms / 1e3
