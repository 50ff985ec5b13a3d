"""Suspend and resume at placement, among in-test peers: what clients get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.placement import suspension_task
from tests.unit.placement.cluster import running_cluster
from tests.unit.placement.faults import FLIPPED
from tests.unit.placement.suspensions import (
    check_live,
    check_suspended,
    close,
    record,
    renew,
    resume,
    settle,
    suspend,
)
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    IntegrityError,
    InvalidInput,
    InvariantBroken,
    NotFound,
    Unavailable,
)
from worldline.state.codec import digests_to_proto
from worldline.v1 import move_pb2, park_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


async def test_out_and_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        answer = await suspend(cluster, session_id, kind="PARK_KIND_FILE")
        assert answer.session.state == "suspended"
        assert answer.session.parked == park_pb2.PARK_KIND_FILE
        assert answer.session.epoch == 1
        assert answer.session.engine_address == ""
        assert not answer.session.HasField("slot")
        found = answer.suspension
        assert found.phase == park_pb2.SUSPENSION_PHASE_DONE
        assert found.digest == 14
        assert [one.name for one in found.timings] == [
            "freeze",
            "park",
            "record",
            "detach",
            "release",
        ]
        assert await record(cluster, found.suspension_id) == found
        check_suspended(cluster, session_id)
        assert cluster.engines["e1"].suspended == [session_id]
        assert await cluster.renew_engine("e1") == {}, "nobody owns it"

        answer = await resume(cluster, session_id)
        assert (answer.session.state, answer.session.epoch) == ("live", 2)
        assert answer.session.engine_address == cluster.addresses["e1"]
        assert answer.session.parked == park_pb2.PARK_KIND_UNSPECIFIED
        assert answer.suspension.digest == 14
        check_live(cluster, session_id)
        assert cluster.engines["e1"].worlds[session_id] == ("running", 2)
        assert await cluster.renew_engine("e1") == {session_id: 2}
        await cluster.move(session_id)
        check_live(cluster, session_id, "e2")


async def test_memory_is_the_default_and_no_other_kind_is_taken(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        with pytest.raises(InvalidInput) as caught:
            await suspend(cluster, session_id, kind=7)
        assert caught.value.field == "kind"
        answer = await suspend(cluster, session_id)
        assert answer.suspension.kind == park_pb2.PARK_KIND_MEMORY


async def test_asking_again_changes_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        first = await suspend(cluster, session_id, idempotency_key="k1")
        again = await suspend(cluster, session_id, idempotency_key="k1")
        assert again.suspension == first.suspension
        assert not (await suspend(cluster, session_id)).HasField("suspension")
        with pytest.raises(Conflict) as caught:
            await resume(cluster, session_id, idempotency_key="k1")
        assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"
        await resume(cluster, session_id, idempotency_key="k2")
        again = await resume(cluster, session_id, idempotency_key="k2")
        assert again.session.epoch == 2
        assert not (await resume(cluster, session_id)).HasField("suspension")
        # Of the first suspend, which is long over: not another one.
        await suspend(cluster, session_id, idempotency_key="k1")
        check_live(cluster, session_id)


async def test_a_connection_to_the_engine_that_broke_since_costs_no_resume(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        cluster.faults.fail("e1.Attach", Unavailable("Connection reset by peer"))
        await resume(cluster, session_id)
        assert cluster.faults.calls.count("e1.Attach") == 2
        check_live(cluster, session_id)


async def test_two_at_once_are_one(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("n1.Park")
        tasks = [asyncio.ensure_future(suspend(cluster, session_id)) for _ in range(3)]
        await cluster.faults.reach("n1.Park")
        gate.set()
        answers = await asyncio.gather(*tasks)
        assert {one.session.state for one in answers} == {"suspended"}
        assert cluster.faults.calls.count("n1.Park") == 1
        check_suspended(cluster, session_id)


# --- not now -----------------------------------------------------------------------------------


async def test_neither_a_move_nor_a_suspend_begins_in_the_other(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("e2.Attach")
        moving = asyncio.ensure_future(cluster.move(session_id))
        await cluster.faults.reach("e2.Attach")
        with pytest.raises(Conflict) as caught:
            await suspend(cluster, session_id)
        assert caught.value.reason == "MOVE_IN_PROGRESS"
        with pytest.raises(Conflict) as caught:
            await resume(cluster, session_id)
        assert caught.value.reason == "MOVE_IN_PROGRESS"
        gate.set()
        await moving

        gate = cluster.faults.hold("n2.Park")
        suspending = asyncio.ensure_future(suspend(cluster, session_id))
        await cluster.faults.reach("n2.Park")
        with pytest.raises(Conflict) as caught:
            await cluster.move(session_id, "n1")
        assert caught.value.reason == "SESSION_SUSPENDING"
        with pytest.raises(Conflict) as caught:
            await resume(cluster, session_id)
        assert caught.value.reason == "SUSPEND_IN_PROGRESS"
        with pytest.raises(Conflict) as caught:
            await close(cluster, session_id)
        assert caught.value.reason == "SUSPEND_IN_PROGRESS"
        gate.set()
        await suspending
        with pytest.raises(Conflict) as caught:
            await cluster.move(session_id, "n1")
        assert caught.value.reason == "SESSION_SUSPENDED"
        with pytest.raises(Conflict) as caught:
            await cluster.ask(
                "RegisterState", placement_pb2.RegisterStateRequest(session_id=session_id)
            )
        assert caught.value.reason == "SESSION_SUSPENDED"

        gate = cluster.faults.hold("n2.Unpark")
        resuming = asyncio.ensure_future(resume(cluster, session_id))
        await cluster.faults.reach("n2.Unpark")
        with pytest.raises(Conflict) as caught:
            await suspend(cluster, session_id)
        assert caught.value.reason == "RESUME_IN_PROGRESS"
        gate.set()
        await resuming
        check_live(cluster, session_id, "e2")


async def test_what_is_unknown_is_not_found(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        with pytest.raises(NotFound):
            await suspend(cluster, "session-none")
        with pytest.raises(NotFound):
            await resume(cluster, "session-none")
        with pytest.raises(NotFound):
            await record(cluster, "suspend-none")


async def test_a_suspended_session_takes_no_slot_and_no_time(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        answer = await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())
        node = next(one for one in answer.nodes if one.node_id == "n1")
        assert node.devices[0].slots_free == node.devices[0].slots_total
        assert node.engines[0].sessions == 0
        listed = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
        assert [one.state for one in listed.sessions] == ["suspended"]


async def test_no_room_is_a_verdict_and_it_stays_suspended(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        full = Verdict.reject(RejectReason.DEVICE_OVERCOMMITTED, "busy", retry_after_ms=7)
        cluster.admission.session_verdicts.append(full)
        answer = await resume(cluster, session_id)
        assert answer.verdict.reason == move_pb2.REJECT_REASON_DEVICE_OVERCOMMITTED
        assert answer.session.state == "suspended"
        check_suspended(cluster, session_id)
        load = cluster.admission.loads[-1]
        assert (load.slots_used, load.engine_id) == (0, "e1")
        await resume(cluster, session_id)
        check_live(cluster, session_id)


async def test_a_mover_without_a_free_slot_says_so(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        cluster.faults.fail("n1.Unpark", CapacityExhausted("full", reason="NO_FREE_SLOT"))
        with pytest.raises(CapacityExhausted) as caught:
            await resume(cluster, session_id)
        assert caught.value.reason == "NO_FREE_SLOT"
        check_suspended(cluster, session_id)


# --- bytes that differ -------------------------------------------------------------------------


async def test_a_copy_that_differs_leaves_the_world_playing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        error = IntegrityError("differs", leaf="kv", granule=1)
        cluster.faults.fail("n1.Park", error)
        with pytest.raises(IntegrityError) as caught:
            await suspend(cluster, session_id)
        assert (caught.value.leaf, caught.value.granule) == ("kv", 1)
        check_live(cluster, session_id)
        assert (await cluster.resolve(session_id)).state == "live"
        await suspend(cluster, session_id)


async def test_what_came_back_different_is_not_installed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        cluster.faults.fail("n1.Unpark", IntegrityError("differs", leaf="kv", granule=1))
        with pytest.raises(IntegrityError) as caught:
            await resume(cluster, session_id)
        assert caught.value.leaf == "kv"
        check_suspended(cluster, session_id)
        await resume(cluster, session_id)
        check_live(cluster, session_id)


async def test_another_state_under_the_same_name_is_not_installed(tmp_path: Path) -> None:
    """The mover's word is not taken for what it has."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        ((_, (_, _, manifest)),) = cluster.movers["n1"].parked.items()
        honest = manifest.digests.whole
        manifest.digests.CopyFrom(digests_to_proto(FLIPPED))
        with pytest.raises(IntegrityError) as caught:
            await resume(cluster, session_id)
        assert caught.value.reason == "MANIFEST_MISMATCH"
        check_suspended(cluster, session_id)
        manifest.digests.whole = honest
        manifest.block_index = 6
        with pytest.raises(IntegrityError):
            await resume(cluster, session_id)
        manifest.block_index = 7
        await resume(cluster, session_id)
        check_live(cluster, session_id)


# --- orphans and closing -----------------------------------------------------------------------


async def test_closing_a_suspended_session_drops_its_copy(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        await close(cluster, session_id)
        assert not cluster.movers["n1"].parked
        with pytest.raises(NotFound):
            await cluster.resolve(session_id)


async def test_a_copy_that_nobody_names_is_an_orphan(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        await suspend(cluster, session_id)
        (park_id,) = cluster.movers["n1"].parked
        assert (await renew(cluster)).parked_orphans == []
        gate = cluster.faults.hold("n1.Unpark")
        task = asyncio.ensure_future(resume(cluster, session_id))
        await cluster.faults.reach("n1.Unpark")
        assert (await renew(cluster)).parked_orphans == [], "it is being read"
        gate.set()
        await task
        cluster.movers["n1"].parked[park_id] = (session_id, 1, None)  # type: ignore[assignment]
        answer = await renew(cluster)
        assert list(answer.parked_orphans) == [park_id]
        assert list(answer.orphans) == []


async def test_the_slot_of_a_suspend_under_way_is_no_orphan(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("e1.Detach")
        task = asyncio.ensure_future(suspend(cluster, session_id))
        await cluster.faults.reach("e1.Detach")
        assert list((await renew(cluster)).orphans) == [], "the engine has yet to let go"
        gate.set()
        await task
        check_suspended(cluster, session_id)


async def test_a_shutdown_undoes_what_is_not_on_record(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("n1.Park")
        task = asyncio.ensure_future(suspend(cluster, session_id))
        await cluster.faults.reach("n1.Park")
        assert cluster.placement is not None
        stopping = asyncio.ensure_future(cluster.placement.runtime.stop(5))
        await asyncio.sleep(0.05)
        gate.set()
        await stopping
        await asyncio.gather(task, return_exceptions=True)
        assert cluster.running(session_id) == ["e1"]
        assert not cluster.movers["n1"].parked


@pytest.mark.parametrize("nth", [2, 4])
async def test_a_bug_in_the_task_is_met_as_a_crash_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Before the record it is undone, after it is seen through; no world stays frozen."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        calls = 0

        def step(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth + 1:
                raise ZeroDivisionError("a bug")
            return plain(*args)

        plain = suspension_task.step
        monkeypatch.setattr(suspension_task, "step", step)
        if nth == 2:
            with pytest.raises(InvariantBroken):
                await suspend(cluster, session_id)
            check_live(cluster, session_id)
        else:
            await suspend(cluster, session_id)
            check_suspended(cluster, session_id)


async def test_a_shutdown_after_the_record_says_that_it_goes_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("e1.Detach")
        task = asyncio.ensure_future(
            cluster.ask(
                "SuspendSession", placement_pb2.SuspendSessionRequest(session_id=session_id)
            )
        )
        await cluster.faults.reach("e1.Detach")
        assert cluster.placement is not None
        await cluster.placement.runtime.stop(0.1)
        with pytest.raises(Unavailable) as caught:
            await task
        assert caught.value.reason == "PLACEMENT_STOPPING"
        gate.set()
        del cluster.faults.gates["e1.Detach"]
        await cluster.crash_placement()
        await cluster.start_placement()
        await settle(cluster)
        check_suspended(cluster, session_id)
