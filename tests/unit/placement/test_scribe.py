"""The scribe: phases on record in order, behind the steps, and never outrun by a commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.placement import move_table, runtime, scribe
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.recovery import Resumption, resume
from tests.unit.placement.cluster import running_cluster
from tests.unit.placement.test_deaths import moving
from worldline.errors import Conflict
from worldline.v1 import move_pb2, placement_pb2


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every phase is written, or these moves would be over before one is."""
    monkeypatch.setattr(scribe, "BEHIND_S", 0.0)


async def test_phases_that_pass_quickly_are_not_written_but_the_ticket_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = move_table.save_move, []

    def noted(db: Any, entry: Any) -> None:
        written.append(entry.move.phase)
        real(db, entry)

    monkeypatch.setattr(move_table, "save_move", noted)
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        monkeypatch.setattr(scribe, "BEHIND_S", 3_600.0)
        record = await cluster.move(session_id)
        assert record.phase == move_pb2.MOVE_PHASE_DONE
        assert written == [MovePhase.ADMITTED]
        gate = cluster.faults.hold("n2.Push")
        moving_back = asyncio.ensure_future(cluster.move(session_id, "n1"))
        await cluster.faults.reach("n2.Push")
        listed = await cluster.ask("ListMoves", placement_pb2.ListMovesRequest(limit=1))
        (open_move,) = listed.moves
        got = await cluster.ask("GetMove", placement_pb2.GetMoveRequest(move_id=open_move.move_id))
        assert got.move.phase == move_pb2.MOVE_PHASE_FROZEN, "what is asked for is as it is now"
        gate.set()
        assert (await moving_back).phase == move_pb2.MOVE_PHASE_DONE
        assert written == [MovePhase.ADMITTED] * 2


async def test_steps_do_not_wait_for_the_record_but_the_commit_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written, may_write = move_table.save_move, [], threading.Event()

    def slow(db: Any, entry: Any) -> None:
        may_write.wait(60)
        real(db, entry)
        written.append(entry.move.phase)

    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        monkeypatch.setattr(move_table, "save_move", slow)
        gate = cluster.faults.hold("e2.Attach")
        task = asyncio.ensure_future(cluster.move(session_id))
        await cluster.faults.reach("e2.Attach")
        assert not written, "the bytes are across and nothing of it is on record"
        gate.set()
        await asyncio.sleep(0.2)
        assert "e2.Activate" not in cluster.faults.calls
        assert cluster.running(session_id) == []
        may_write.set()
        assert (await task).phase == move_pb2.MOVE_PHASE_DONE
        before_commit = [phase for phase in written if phase.before_commit]
        assert before_commit == sorted(before_commit)
        assert before_commit[-1] is MovePhase.VERIFIED or before_commit[-1] is MovePhase.STAGED
        cluster.check_at(session_id, "e2")


@pytest.mark.parametrize("method", ["n1.Push", "e2.Attach"])
async def test_placement_dies_before_anything_of_the_move_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As after a power cut: the slot, LIVE by then, is in no record, and is found and released."""
    monkeypatch.setattr(move_table, "save_move", lambda db, entry: None)
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, method)
        target = cluster.movers["n2"].slots
        if method == "e2.Attach":
            await asyncio.wait_for(cluster.movers["n2"].promoted.wait(), 60)
        assert len(target) == 1
        await cluster.crash_placement()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        monkeypatch.undo()
        await cluster.start_placement()
        assert cluster.placement is not None
        (listed,) = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
        record = await cluster.ended(listed.move_id)
        assert record.failure.reason == "PLACEMENT_RESTARTED"
        assert not target
        cluster.check_at(session_id, "e1")


async def test_an_attach_that_fails_after_the_promotion_leaves_no_slot(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id, task, gate = await moving(cluster, "e2.Attach")
        target = cluster.movers["n2"].slots
        await asyncio.wait_for(cluster.movers["n2"].promoted.wait(), 60)
        assert [role for _, role in target.values()] == ["live"]
        cluster.faults.fail("e2.Attach", Conflict("no"))
        gate.set()
        assert (await task).phase == move_pb2.MOVE_PHASE_ABORTED
        assert not target
        cluster.check_at(session_id, "e1")


async def test_a_phase_that_cannot_follow_what_is_on_record_is_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Met as every bug of a move's task is: by recovery."""
    real, recovered = move_table.save_move, []

    def recover(move: Move) -> Resumption:
        recovered.append(move.move_id)
        return resume(move)

    def confused(db: Any, entry: Any) -> None:
        if entry.move.phase is MovePhase.STAGED:
            entry = entry.with_move(replace(entry.move, move_id="another"))
        real(db, entry)

    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        monkeypatch.setattr(move_table, "save_move", confused)
        monkeypatch.setattr(runtime, "resume", recover)
        record = await cluster.move(session_id)
        assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        assert recovered == [record.move_id]
        cluster.check_at(session_id, "e1")


async def test_a_disk_that_is_full_for_good_still_ends_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(db: Any, entry: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        monkeypatch.setattr(move_table, "save_move", full)
        record = await cluster.move(session_id)
        assert record.failure.reason == "DIRECTORY_FAILED"
        cluster.check_at(session_id, "e1")
