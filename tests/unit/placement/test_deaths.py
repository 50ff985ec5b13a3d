"""Deaths: of peers in mid-move, and of placement itself."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.placement import move_table, move_task, scribe
from tests.unit.placement.cluster import LEASE_MS, Cluster, running_cluster
from worldline.errors import Conflict, Unavailable
from worldline.telemetry.spans import use_tracer
from worldline.v1 import move_pb2, placement_pb2


async def moving(cluster: Cluster, method: str) -> tuple[str, asyncio.Task[Any], asyncio.Event]:
    """A session whose move stands in `method`."""
    session_id = await cluster.session()
    gate = cluster.faults.hold(method)
    task = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach(method)
    return session_id, task, gate


async def test_the_target_engine_dies_before_the_commit(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, "e2.Attach")
        await cluster.kill("e2")
        gate.set()
        record = await task
        assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        cluster.check_at(session_id, "e1")
        assert (await cluster.resolve(session_id)).state == "live"


async def test_the_target_mover_dies_in_mid_push(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, "n1.Push")
        cluster.faults.fail("n1.Push", Unavailable("the stream to n2 broke"))
        await cluster.kill("n2")
        gate.set()
        record = await task
        assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        cluster.check_at(session_id, "e1")


async def test_the_source_engine_dies_while_frozen(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, "n2.Verify")
        await cluster.kill("e1")
        cluster.faults.fail("n2.Verify", *[Unavailable("away")] * 3)
        gate.set()
        record = await task
        assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        assert (await cluster.resolve(session_id)).state == "lost"
        assert not cluster.movers["n2"].slots
        cluster.check_idle()


async def test_the_source_engine_dies_but_the_bytes_are_across(tmp_path: Path) -> None:
    """Frozen, pushed and verified bytes outlive their source: the move saves the world."""
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, "e2.Attach")
        await cluster.kill("e1")
        gate.set()
        record = await task
        assert record.phase == move_pb2.MOVE_PHASE_DONE
        cluster.check_at(session_id, "e2")


async def test_a_silent_engine_loses_its_sessions_and_gets_them_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        assert cluster.placement is not None
        runtime = cluster.placement.runtime
        now = asyncio.get_running_loop().time()
        await runtime.reap(now)
        assert (await cluster.resolve(session_id)).state == "live"
        await runtime.reap(now + LEASE_MS / 1e3 + 1)
        assert (await cluster.resolve(session_id)).state == "lost"
        assert await cluster.renew_engine("e1") == {session_id: 1}
        assert (await cluster.resolve(session_id)).state == "live"


async def test_a_placement_that_stood_still_itself_presumes_nobody_dead(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        assert cluster.placement is not None
        runtime = cluster.placement.runtime
        stood_s = 10 * LEASE_MS / 1e3
        now = asyncio.get_running_loop().time() + stood_s
        await runtime.reap(now, late_s=stood_s)
        assert (await cluster.resolve(session_id)).state == "live"
        await runtime.reap(now + LEASE_MS / 1e3 + 1)
        assert (await cluster.resolve(session_id)).state == "lost"


BEFORE_COMMIT = [
    "AdmitMove", "n2.Reserve", "e2.WarmWorld", "n1.Arm", "e1.Freeze", "n1.Push", "n2.Verify",
    "e2.Attach",
]  # fmt: skip
AFTER_COMMIT = ["e2.Activate", "e1.Detach", "n1.Release"]


@pytest.mark.parametrize("method", BEFORE_COMMIT + AFTER_COMMIT)
async def test_placement_dies_at_every_step(tmp_path: Path, method: str) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, method)
        assert cluster.placement is not None
        (move,) = cluster.placement.runtime.open_move_tasks()
        await cluster.crash_placement()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        await cluster.start_placement()
        record = await cluster.ended(move.move_id)
        committed = method in AFTER_COMMIT
        assert record.phase == (
            move_pb2.MOVE_PHASE_DONE if committed else move_pb2.MOVE_PHASE_ABORTED
        )
        session = await cluster.resolve(session_id)
        assert (session.engine_id, session.epoch, session.state) == (
            ("e2", 2, "live") if committed else ("e1", 1, "live")
        )
        cluster.check_at(session_id, "e2" if committed else "e1")
        # Its peers are still known, their names still theirs.
        assert await cluster.renew_engine(session.engine_id) == {session_id: session.epoch}
        if not committed:
            assert record.failure.reason == "PLACEMENT_RESTARTED"


async def test_placement_dies_in_mid_rollback(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        cluster.faults.fail("e2.Attach", Conflict("no"))
        gate = cluster.faults.hold("e1.Thaw")
        task = asyncio.ensure_future(cluster.move(session_id))
        await cluster.faults.reach("e1.Thaw")
        await cluster.crash_placement()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        await cluster.start_placement()
        assert cluster.placement is not None
        (listed,) = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
        record = await cluster.ended(listed.move_id)
        assert (record.phase, record.failure.reason) == (
            move_pb2.MOVE_PHASE_ABORTED,
            "CONFLICT",
        )
        cluster.check_at(session_id, "e1")


async def test_what_a_restart_does_is_in_the_moves_own_trace(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    use_tracer(provider.get_tracer("worldline"))
    try:
        async with running_cluster(tmp_path) as cluster:
            _, task, gate = await moving(cluster, "n1.Push")
            await cluster.crash_placement()
            await asyncio.gather(task, return_exceptions=True)
            gate.set()
            spans.clear()
            await cluster.start_placement()
            (listed,) = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
            record = await cluster.ended(listed.move_id)
    finally:
        use_tracer(None)
    found = {one.name: f"{one.context.trace_id:032x}" for one in spans.get_finished_spans()}
    assert found["move"] == found["thaw_source"] == record.trace_id
    provider.shutdown()


async def test_placement_dies_while_opening(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        gate = cluster.faults.hold("e1.OpenWorld")
        task = asyncio.ensure_future(cluster.open(key="k"))
        await cluster.faults.reach("e1.OpenWorld")
        await cluster.crash_placement()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        undone = cluster.faults.hold("e1.CloseWorld")
        await cluster.start_placement()
        undoing = [one for one in asyncio.all_tasks() if one.get_name().startswith("abandon")]
        # Nobody is handed the half of a session.
        await cluster.faults.reach("e1.CloseWorld")
        with pytest.raises(Unavailable) as caught:
            await cluster.open(key="k")
        assert caught.value.reason == "SESSION_OPENING"
        undone.set()
        await asyncio.wait_for(asyncio.gather(*undoing), 60)
        listed = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
        assert not listed.sessions
        assert cluster.engines["e1"].worlds == {}
        assert (await cluster.open(key="k")).session.state == "live"


@pytest.mark.parametrize(("method", "phase"), [("n1.Push", "ABORTED"), ("e1.Detach", "DONE")])
async def test_a_stop_brings_moves_to_a_safe_point(tmp_path: Path, method: str, phase: str) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, method)
        assert cluster.placement is not None
        stopping = asyncio.ensure_future(cluster.placement.runtime.stop(5))
        if phase == "DONE":
            gate.set()
        await stopping
        record = await task
        assert record.phase == move_pb2.MovePhase.Value(f"MOVE_PHASE_{phase}")
        with pytest.raises(Unavailable) as caught:
            await cluster.move(session_id, "")
        assert caught.value.reason == "PLACEMENT_STOPPING"
        gate.set()


async def test_a_commit_that_the_disk_refuses_is_asked_for_not_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once before and once after it took effect: the directory decides, not the error."""
    real = move_table.commit_move
    for took_effect in (False, True):

        def broken(*args: Any, took_effect: bool = took_effect) -> Any:
            if took_effect:
                real(*args)
            raise sqlite3.OperationalError("disk I/O error")

        (tmp_path / str(took_effect)).mkdir()
        async with running_cluster(tmp_path / str(took_effect)) as cluster:
            session_id = await cluster.session()
            monkeypatch.setattr(move_table, "commit_move", broken)
            record = await cluster.move(session_id)
            monkeypatch.setattr(move_table, "commit_move", real)
            if took_effect:
                assert record.phase == move_pb2.MOVE_PHASE_DONE
            else:
                assert record.failure.reason == "COMMIT_LOST"
            cluster.check_at(session_id, "e2" if took_effect else "e1")
    # Not by way of a broken invariant and the recovery from it.
    assert "move.task_failed" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("method", ["AdmitMove", "e1.Freeze", "n1.Push"])
async def test_a_phase_that_cannot_be_recorded_rolls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    real = move_table.save_move
    full = [False]

    def broken(db: Any, entry: Any) -> None:
        if full[0] and entry.move.phase.before_commit:
            raise sqlite3.OperationalError("database or disk is full")
        real(db, entry)

    def swap(*args: Any) -> Any:
        cluster.faults.calls.append("swap")
        return commit(*args)

    commit = move_table.commit_move
    monkeypatch.setattr(scribe, "BEHIND_S", 0.0)
    monkeypatch.setattr(move_table, "save_move", broken)
    monkeypatch.setattr(move_table, "commit_move", swap)
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, method)
        full[0] = True
        gate.set()
        record = await asyncio.wait_for(task, 60)
        assert record.failure.reason == "DIRECTORY_FAILED"
        assert "swap" not in cluster.faults.calls, "nothing commits that is not on record"
        cluster.check_at(session_id, "e1")


async def test_a_bug_in_a_moves_task_is_met_by_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = move_task.step
    bugs = [True]

    def buggy(move: Any, event: Any, now: float, limits: Any) -> Any:
        if type(event).__name__ == "Pushed" and bugs:
            bugs.pop()
            raise ZeroDivisionError("a bug")
        return real(move, event, now, limits)

    monkeypatch.setattr(move_task, "step", buggy)
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        record = await cluster.move(session_id)
        assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        cluster.check_at(session_id, "e1")
