"""Openings that lost whoever opened them are undone while placement lives, and no others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.placement import session_table
from tests.unit.placement.cluster import Cluster, running_cluster
from worldline.errors import InvariantBroken, Unavailable
from worldline.v1 import placement_pb2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def states(cluster: Cluster) -> list[str]:
    answer = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
    return [one.state for one in answer.sessions]


async def look(cluster: Cluster) -> None:
    """Twice: once does not tell."""
    assert cluster.placement is not None
    for _ in range(2):
        await cluster.placement.sessions.reap()


@asynccontextmanager
async def looking(cluster: Cluster) -> AsyncIterator[None]:
    """As it looks by itself, and more often than with leases of these tests' length."""
    assert cluster.placement is not None
    runtime = cluster.placement.runtime
    runtime.fleet.engine_lease_ms = 3
    reaping = asyncio.ensure_future(runtime._reap())
    try:
        yield
    finally:
        reaping.cancel()
        await asyncio.gather(reaping, return_exceptions=True)


def full(*_arguments: Any) -> Any:
    raise sqlite3.OperationalError("database or disk is full")


async def test_an_opening_that_the_directory_does_not_take_down_is_undone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine runs the world and is told that it owns it; its client cannot close it."""
    with monkeypatch.context() as patched:
        patched.setattr(session_table, "opened", full)
        patched.setattr(session_table, "set_state", full)
        with pytest.raises(InvariantBroken):
            await cluster.open(key="k")
        with pytest.raises(Unavailable) as caught:
            await cluster.open(key="k")
        assert caught.value.reason == "SESSION_OPENING"
        # Neither does the first attempt to undo it, nor the second.
        for _ in range(2):
            await look(cluster)
            await asyncio.sleep(0)
        assert await states(cluster) == ["opening"]
    async with looking(cluster), asyncio.timeout(60):
        while await states(cluster):
            pass
    assert cluster.engines["e1"].worlds == {}
    assert (await cluster.open(key="k")).session.state == "live"


async def test_an_opening_that_takes_long_is_not_undone(cluster: Cluster) -> None:
    gate = cluster.faults.hold("e1.OpenWorld")
    opening = asyncio.ensure_future(cluster.open())
    await cluster.faults.reach("e1.OpenWorld")
    await look(cluster)
    for _ in range(20):  # an undoing would have ended by then
        assert await states(cluster) == ["opening"]
    gate.set()
    assert (await opening).session.state == "live"
    assert "e1.CloseWorld" not in cluster.faults.calls


async def test_one_that_is_being_undone_is_not_undone_again(cluster: Cluster) -> None:
    """Of the process before: nobody here has opened it."""
    gate = cluster.faults.hold("e1.OpenWorld")
    opening = asyncio.ensure_future(cluster.open())
    await cluster.faults.reach("e1.OpenWorld")
    await cluster.crash_placement()
    await asyncio.gather(opening, return_exceptions=True)
    gate.set()
    gate = cluster.faults.hold("e1.CloseWorld")
    await cluster.start_placement()
    await cluster.faults.reach("e1.CloseWorld")
    await look(cluster)
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(60):
        while await states(cluster):
            await look(cluster)
    assert cluster.faults.calls.count("e1.CloseWorld") == 1
