"""Suspend and resume at placement, among in-test peers: every way to die."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.placement import node_table, suspension_table
from tests.unit.placement.cluster import running_cluster
from tests.unit.placement.suspensions import (
    check_live,
    check_suspended,
    close,
    renew,
    resume,
    settle,
    suspend,
)
from worldline.errors import (
    Conflict,
    Fenced,
    NotFound,
    Unavailable,
)
from worldline.v1 import placement_pb2

FORWARD = ["e1.Freeze", "n1.Park", "n1.Unpark", "e1.Attach"]


@pytest.mark.parametrize("method", FORWARD)
@pytest.mark.parametrize("how", ["fail", "lose_reply"])
async def test_a_step_that_fails_is_undone_whatever_it_did(
    tmp_path: Path, method: str, how: str
) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        resumes = method in ("n1.Unpark", "e1.Attach")
        if resumes:
            await suspend(cluster, session_id)
        getattr(cluster.faults, how)(method, *[Unavailable("the line broke")] * 3)
        with pytest.raises(Conflict) as caught:
            await (resume if resumes else suspend)(cluster, session_id)
        assert "the line broke" in caught.value.message
        if resumes:
            check_suspended(cluster, session_id)
        else:
            check_live(cluster, session_id)
        for faults in (cluster.faults.errors, cluster.faults.lost_replies):
            faults.clear()
        await (resume if resumes else suspend)(cluster, session_id)


OWED = ["e1.Detach", "n1.Release", "e1.Activate", "n1.DropParked"]


@pytest.mark.parametrize("method", OWED)
async def test_what_is_owed_is_asked_for_until_it_is_done(tmp_path: Path, method: str) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        resumes = method in ("e1.Activate", "n1.DropParked")
        if resumes:
            await suspend(cluster, session_id)
        cluster.faults.fail(method, *[Unavailable("away")] * 3)
        cluster.faults.lose_reply(method, *[Unavailable("away")] * 2)
        await (resume if resumes else suspend)(cluster, session_id)
        if resumes:
            check_live(cluster, session_id)
        else:
            check_suspended(cluster, session_id)


STEPS = ["e1.Freeze", "n1.Park", "e1.Detach", "n1.Release"]
STEPS_BACK = ["n1.Unpark", "e1.Attach", "e1.Activate", "n1.DropParked"]


@pytest.mark.parametrize("method", STEPS + STEPS_BACK)
async def test_placement_dies_at_every_step(tmp_path: Path, method: str) -> None:
    """Before the record it is undone, after it is seen through; never both, never neither."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        resumes = method in STEPS_BACK
        if resumes:
            await suspend(cluster, session_id)
        gate = cluster.faults.hold(method)
        work = resume if resumes else suspend
        task = asyncio.ensure_future(work(cluster, session_id))
        await cluster.faults.reach(method)
        await cluster.crash_placement()
        await asyncio.gather(task, return_exceptions=True)
        del cluster.faults.gates[method]
        gate.set()
        await asyncio.sleep(0.05)
        await cluster.start_placement()
        await settle(cluster)
        recorded = method in ("e1.Detach", "n1.Release", "e1.Activate", "n1.DropParked")
        if recorded == resumes:
            check_live(cluster, session_id)
            assert (await cluster.resolve(session_id)).epoch == (2 if resumes else 1)
        else:
            check_suspended(cluster, session_id)
        await (resume if recorded != resumes else suspend)(cluster, session_id)


async def test_the_record_fails_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()

        def full(db: sqlite3.Connection, entry: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(suspension_table, "record_suspension", full)
        with pytest.raises(Exception, match="disk is full"):
            await suspend(cluster, session_id)
        monkeypatch.undo()
        check_live(cluster, session_id)


async def test_the_engine_dies_while_frozen_and_the_world_is_saved(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("n1.Park")
        task = asyncio.ensure_future(suspend(cluster, session_id))
        await cluster.faults.reach("n1.Park")
        await cluster.kill("e1")
        gate.set()
        assert (await task).session.state == "suspended"
        with pytest.raises(Unavailable) as caught:
            await cluster.ask(
                "ResumeSession", placement_pb2.ResumeSessionRequest(session_id=session_id)
            )
        assert caught.value.reason == "ENGINE_SILENT"


async def test_the_engine_dies_before_it_froze(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await cluster.kill("e1")
        with pytest.raises(Conflict):
            await suspend(cluster, session_id)
        assert (await cluster.resolve(session_id)).state == "lost"
        with pytest.raises(Conflict) as caught:
            await resume(cluster, session_id)
        assert caught.value.reason == "SESSION_LOST"


async def test_another_process_of_the_engine_takes_the_world_up(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        await cluster.register_engine("e1", "i2")
        assert (await cluster.resolve(session_id)).state == "suspended"
        await resume(cluster, session_id)
        check_live(cluster, session_id)
        assert await cluster.renew_engine("e1", "i2") == {session_id: 2}


@pytest.mark.parametrize("kind", ["PARK_KIND_MEMORY", "PARK_KIND_FILE"])
async def test_a_mover_that_comes_back(tmp_path: Path, kind: str) -> None:
    """Its memory went with it, and with that the world; its files did not."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id, kind=kind)
        mover = cluster.movers["n1"]
        if kind == "PARK_KIND_MEMORY":
            mover.parked.clear()
        await cluster.register_node("n1", "j2")
        assert cluster.placement is not None
        if kind == "PARK_KIND_MEMORY":
            with pytest.raises(Conflict) as caught:
                await resume(cluster, session_id)
            assert caught.value.reason == "SESSION_LOST"
            await cluster.placement.runtime.reap(0.0)
            assert (await cluster.resolve(session_id)).state == "lost"
            # The engine that had it still renews: that must not bring it back.
            await cluster.renew_engine("e1")
            assert (await cluster.resolve(session_id)).state == "lost"
            await close(cluster, session_id)
            return
        await cluster.placement.runtime.reap(0.0)
        assert (await renew(cluster, incarnation="j2")).parked_orphans == []
        await resume(cluster, session_id)
        check_live(cluster, session_id)


async def test_a_file_that_is_gone_is_a_world_that_is_lost(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id, kind="PARK_KIND_FILE")
        cluster.movers["n1"].parked.clear()
        with pytest.raises(NotFound) as caught:
            await resume(cluster, session_id)
        assert caught.value.reason == "PARKED_UNKNOWN"
        assert (await cluster.resolve(session_id)).state == "lost"
        await cluster.renew_engine("e1")
        assert (await cluster.resolve(session_id)).state == "lost"
        await close(cluster, session_id)


async def test_the_mover_is_replaced_while_it_copies(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("n1.Park")
        task = asyncio.ensure_future(suspend(cluster, session_id))
        await cluster.faults.reach("n1.Park")
        await cluster.register_node("n1", "j2")
        gate.set()
        with pytest.raises(Conflict) as caught:
            await task
        assert caught.value.reason == "CHANNEL_CLOSED"
        check_live(cluster, session_id)


async def test_nothing_is_on_record_of_a_mover_that_was_replaced(tmp_path: Path) -> None:
    """The copy is whole, but the mover that made it is not the one of now."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("n1.Park")
        task = asyncio.ensure_future(suspend(cluster, session_id))
        await cluster.faults.reach("n1.Park")
        assert cluster.placement is not None
        node = cluster.placement.fleet.node("n1")
        directory = cluster.placement.directory
        await directory.do(node_table.put_node, replace(node, incarnation="j2"))
        gate.set()
        with pytest.raises(Fenced) as caught:
            await task
        assert caught.value.reason == "RECORD_LOST"
        check_live(cluster, session_id)


async def test_a_silent_node_is_waited_for(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        cluster.silence("n1")
        with pytest.raises(Unavailable) as caught:
            await cluster.ask(
                "ResumeSession", placement_pb2.ResumeSessionRequest(session_id=session_id)
            )
        assert caught.value.reason == "NODE_SILENT"
        await renew(cluster)
        await resume(cluster, session_id)
        check_live(cluster, session_id)
