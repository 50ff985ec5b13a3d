"""Record screens: what `worldline top` and `worldline move --watch` print of a real move, as SVG.

    .venv/bin/python docs/images/record_screens.py

starts a cluster of two nodes (4 GB of memory), opens the whole Matrix-Game-2 state and a small
world on it, moves the large one, and writes top.svg and move-watch.svg beside this file. Nothing is
drawn by hand: the commands run as a user runs them, on a console that remembers what it printed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from rich.console import Console

from worldline.cli import moves, output
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions
from worldline.cli.top_frame import frame
from worldline.cli.top_snapshot import Snapshot, take
from worldline.cli.watching import Watched, lines
from worldline.contract import Contract, ServiceClass
from worldline.sdk import Action, Client, MoveRecord, Progress
from worldline.sdk.move_record import PUSH
from worldline.sdk.session import Session

HERE = Path(__file__).parent
COLUMNS = 118
SLOT_BYTES = 1_700 << 20
#: What no block has written is zeros, which stay behind in a move: by then most of it is written.
LARGE_BLOCKS = 3
PATIENT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=60_000)


def recorder() -> Console:
    """A console that remembers, and shows nothing."""
    return Console(record=True, width=COLUMNS, file=open("/dev/null", "w"), force_terminal=True)


def save(console: Console, name: str, title: str) -> None:
    """As SVG, with the fonts of whoever looks."""
    path = HERE / name
    console.save_svg(str(path), title=title)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


async def record_move(session: Session) -> tuple[MoveRecord, Watched, float]:
    """Move it; what a watcher knew in the middle of the push, and when."""
    watched, middle, at_s = Watched(), Watched(), 0.0

    def hear(progress: Progress) -> None:
        nonlocal watched, middle, at_s
        watched = watched.heard(progress, time.monotonic())
        if progress.step == PUSH and progress.sent_bytes <= progress.total_bytes * 0.7:
            middle, at_s = watched, time.monotonic()

    return await session.move("node-2", hear), middle, at_s


async def in_the_push(client: Client) -> Snapshot:
    """The first snapshot in which a quarter of the bytes has been sent."""
    async with asyncio.timeout(120):
        while True:
            snapshot = await take(client, time.monotonic())
            for one in snapshot.moves:
                if one.progress and one.progress.sent_bytes > one.progress.total_bytes / 4:
                    return snapshot


async def record(client: Client) -> None:
    """Both screens of one move."""
    small = await client.open("tiny", seed=7, node="node-1", contract=PATIENT)
    async for _ in small.play(Action.keys("W") for _ in range(12)):
        pass
    for target in ("node-2", "node-1"):  # the path is measured
        (await small.move(target)).raise_unless_committed()
    too_soon = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=1.0)
    hasty = await client.open("tiny", seed=8, node="node-2", contract=too_soon)
    await hasty.move("node-1")  # rejected: that horizon is too short
    large = await client.open("mg2", node="node-1", contract=PATIENT)
    async for _ in large.play(Action.keys("W") for _ in range(LARGE_BLOCKS)):
        pass
    moving = asyncio.ensure_future(record_move(large))
    snapshot = await in_the_push(client)
    shown = recorder()
    shown.print(frame(time.monotonic(), snapshot, COLUMNS))
    save(shown, "top.svg", "worldline top")
    moved, middle, at_s = await moving
    moved.raise_unless_committed()
    shown = recorder()
    shown.print(lines(middle, at_s))
    shown.print()
    moves.console = output.console = shown  # the record's lines and its table
    moves.print_record(moved)
    save(shown, "move-watch.svg", "worldline move SESSION node-2 --watch")


async def main() -> None:
    """Start a cluster, record, stop it."""
    options = ClusterOptions(slots=3, slot_bytes=SLOT_BYTES, start_timeout_s=600)
    async with (
        LocalCluster(options) as cluster,
        Client(cluster.placement_address, open_timeout_s=600, move_timeout_s=600) as client,
    ):
        await record(client)


if __name__ == "__main__":
    asyncio.run(main())
