"""`worldline top` and `watch` beside a real move that is held in the middle of its push."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PATIENT
from tests.e2e.held_cluster import HALF, held_cluster
from tests.e2e.hold import Hold
from tests.oracles import bounded, play
from worldline.cli.cluster import LocalCluster
from worldline.errors import DeadlineExceeded
from worldline.sdk import Client
from worldline.sdk.session import Session

pytestmark = pytest.mark.timeout(600)

WORLDLINE = str(Path(sys.executable).with_name("worldline"))
MEBIBYTE = 1 << 20
#: A line of JSON is far shorter.
_LINE_MAX = 4 * MEBIBYTE


@asynccontextmanager
async def running(cluster: LocalCluster, *arguments: str) -> AsyncIterator[Any]:
    """A command of the cluster's, ended with the block."""
    process = await asyncio.create_subprocess_exec(
        WORLDLINE, *arguments, "--placement", cluster.placement_address,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=_LINE_MAX,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_line(process: Any, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The next line of JSON of which that holds."""
    async with bounded():
        while line := await process.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            if holds(found):
                return found
    raise AssertionError((await process.stderr.read()).decode())


async def answer(cluster: LocalCluster, *arguments: str) -> str:
    async with bounded(), running(cluster, *arguments) as process:
        said, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    return str(said.decode())


def pushing(found: dict[str, Any]) -> bool:
    return any((one["progress"] or {}).get("sent_bytes") for one in found["moves"])


def settled(found: dict[str, Any]) -> bool:
    """Sessions are asked for before moves: a move may end in between."""
    return [one["state"] for one in found["sessions"]] == ["live"]


async def watch_a_held_move(cluster: LocalCluster, hold: Hold, session: Session) -> None:
    """One `top` before, during and after it; another command for each other way to look."""
    async with running(cluster, "top", "--json", "--interval", "100ms") as top:
        before = await until_line(top, lambda one: bool(one["sessions"]))
        assert not before["moves"]
        hold.arm("node-1", HALF)
        moving = asyncio.ensure_future(session.move("node-2"))
        await hold.held()
        during = await until_line(top, pushing)
        (move,) = during["moves"]
        progress = move["progress"]
        assert (move["session_id"], progress["step"]) == (session.session_id, "push")
        assert progress["phase"] == "FROZEN"
        assert MEBIBYTE <= progress["sent_bytes"] < progress["total_bytes"] < 2 * MEBIBYTE
        assert progress["rate_bytes_per_s"] > 0
        assert progress["remaining_ms"] > 0
        later = await until_line(top, pushing)
        assert later["moves"][0]["progress"]["step_ms"] > progress["step_ms"]
        assert later["moves"][0]["progress"]["rate_bytes_per_s"] < progress["rate_bytes_per_s"]
        screen = await answer(cluster, "top", "--once")
        assert re.search(rf"{move['move_id']} .* push .* 1\.05 MB +\d+ .*B/s", screen), screen
        async with running(cluster, "watch", move["move_id"], "--json") as watch:
            heard = await until_line(watch, lambda one: one["step"] == "push")
            assert heard["sent_bytes"] == progress["sent_bytes"]
            await somebody_loses_patience(cluster, move["move_id"])
            hold.release()
            record = await moving
            record.raise_unless_committed()
            last = await until_line(watch, lambda one: "outcome" in one)
            assert (last["move_id"], last["outcome"]) == (move["move_id"], "committed")
            async with bounded():
                assert await watch.wait() == 0
        after = await until_line(top, lambda one: not one["moves"] and settled(one))
        (owned,) = after["sessions"]
        assert (owned["node_id"], owned["epoch"]) == ("node-2", 4)
        await placement_goes_and_comes(cluster, top)
        top.send_signal(signal.SIGINT)
        async with bounded():
            assert await top.wait() == 0
        assert (await top.stderr.read()).decode() == ""


async def somebody_loses_patience(cluster: LocalCluster, move_id: str) -> None:
    """The move is held: whoever watches for half a second sees no end of it, and stops nothing."""
    async with Client(cluster.placement_address, move_timeout_s=0.5) as hasty:
        with pytest.raises(DeadlineExceeded) as caught:
            await hasty.watch_move(move_id)
    assert move_id in caught.value.message


async def placement_goes_and_comes(cluster: LocalCluster, top: Any) -> None:
    await cluster.kill("placement")
    away = await until_line(top, lambda one: one["trouble"] is not None)
    assert away["sessions"], "what it said last"
    await cluster.restart("placement")
    back = await until_line(top, lambda one: one["trouble"] is None)
    assert back["sessions"]


async def on_a_terminal(cluster: LocalCluster, session: Session) -> None:
    """A screen of its own, given back at the end."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        WORLDLINE, "top", "--placement", cluster.placement_address,
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )  # fmt: skip
    os.close(theirs)
    try:
        seen = await _read_until(ours, session.session_id.encode())
        assert b"\x1b[?1049h" in seen
        assert b"node-2-cpu" in await _read_until(ours, b"rejects")
        process.send_signal(signal.SIGINT)
        left = await _read_until(ours, b"\x1b[?1049l")
        assert b"Traceback" not in seen + left
        async with bounded():
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


async def _read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    async with bounded():
        while wanted not in seen:
            seen += await asyncio.to_thread(os.read, terminal, 1 << 16)
    return seen


async def test_a_real_move_is_seen_with_its_bytes_and_its_rate(tmp_path: Path) -> None:
    async with (
        held_cluster(tmp_path) as (cluster, hold),
        Client(cluster.placement_address) as client,
        await client.open("tiny", seed=7, contract=PATIENT, node="node-1") as session,
    ):
        await play(session, 0, 2)  # of a fresh world half is zeros, which would stay behind
        for target in ("node-2", "node-1"):  # the path is measured
            (await session.move(target)).raise_unless_committed()
        await watch_a_held_move(cluster, hold, session)
        await on_a_terminal(cluster, session)
