"""Progress: what placement tells of moves under way, of slots by role, and of blocks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.placement.verbs import Verbs
from tests.unit.placement.cluster import Cluster, running_cluster
from worldline.errors import NotFound
from worldline.move_phase import MovePhase
from worldline.rpc.channel import mapped_errors
from worldline.v1 import move_pb2, placement_pb2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


async def watch(cluster: Cluster, move_id: str) -> list[Any]:
    request = placement_pb2.WatchMoveRequest(move_id=move_id)
    async with mapped_errors():
        return [one async for one in cluster.stub.WatchMove(request, timeout=60)]


async def under_way(cluster: Cluster, session_id: str = "") -> Any:
    request = placement_pb2.ListMovesRequest(session_id=session_id, under_way=True)
    return await cluster.ask("ListMoves", request)


async def test_a_push_under_way_is_listed_with_its_bytes(cluster: Cluster) -> None:
    session_id = await cluster.session()
    ended = (await cluster.move(session_id)).move_id
    gate = cluster.faults.hold("n2.Push")
    moving = asyncio.ensure_future(cluster.move(session_id, "n1"))
    await cluster.faults.reach("n2.Push")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    task = cluster.placement.runtime.move_task(move.move_id)
    assert task is not None
    await task.until(lambda one: one.context.sent_bytes > 0, 60)
    listed = await under_way(cluster)
    assert [one.move_id for one in listed.moves] == [move.move_id]
    assert set(listed.progress) == {move.move_id}
    progress = listed.progress[move.move_id]
    assert progress.phase == move_pb2.MOVE_PHASE_FROZEN
    assert (progress.step, progress.sent_bytes, progress.total_bytes) == ("push", 1024, 2048)
    assert 0 < progress.step_ms < progress.elapsed_ms
    assert progress.wait_max_ms == pytest.approx(300.0)
    again = (await under_way(cluster)).progress[move.move_id]
    assert again.step_ms > progress.step_ms
    assert not (await under_way(cluster, "session-of-somebody-else")).moves
    everything = await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())
    assert [one.move_id for one in everything.moves] == [move.move_id, ended]
    assert set(everything.progress) == {move.move_id}
    got = await cluster.ask("GetMove", placement_pb2.GetMoveRequest(move_id=move.move_id))
    assert got.progress.step == "push"
    gate.set()
    await moving
    assert not (await under_way(cluster)).moves
    got = await cluster.ask("GetMove", placement_pb2.GetMoveRequest(move_id=move.move_id))
    assert not got.HasField("progress")


async def test_a_watcher_hears_of_every_step_in_order(cluster: Cluster) -> None:
    session_id = await cluster.session()
    told = [
        one.progress
        async for one in cluster.watch_move(session_id)
        if one.WhichOneof("event") == "progress"
    ]
    assert len({one.move_id for one in told}) == 1
    phases = [one.phase for one in told]
    assert phases == sorted(phases)
    assert phases[-1] == move_pb2.MOVE_PHASE_DONE
    order = ["admit", "reserve", "arm", "freeze", "push", "verify", "attach", "commit", "thaw"]
    places = [order.index(one.step) for one in told if one.step]
    assert places == sorted(places)
    elapsed = [one.elapsed_ms for one in told]
    assert elapsed == sorted(elapsed)


async def test_a_phase_is_told_in_its_turn_though_the_move_is_further(cluster: Cluster) -> None:
    """Bytes are told while the move enters a phase that its list does not have yet."""
    session_id = await cluster.session()
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n1.Push")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    task = cluster.placement.runtime.move_task(move.move_id)
    assert task is not None
    verbs = Verbs(cluster.placement.runtime, cluster.placement.peers, cluster.deadlines)
    watching = verbs.watch(task, lambda one: one.ended)
    listed = [(await anext(watching)).phase for _ in task.phases]
    assert listed == task.phases
    entry = task.entry
    further = dataclasses.replace(entry.move, phase=MovePhase.ATTACHED)
    task.entry = dataclasses.replace(entry, move=further)
    task.context.sent_bytes += 1
    assert (await anext(watching)).phase is listed[-1]
    task.entry = entry
    await watching.aclose()
    gate.set()
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE


async def test_a_step_within_a_phase_is_told(cluster: Cluster) -> None:
    """Both are of ADMITTED: what makes the target ready, and the wait for the wire."""
    session_id = await cluster.session()
    warming, arming = cluster.faults.hold("e2.WarmWorld"), cluster.faults.hold("n1.Arm")
    steps: list[str] = []
    async for one in cluster.watch_move(session_id):
        steps.append(one.progress.step)
        if one.progress.step == "reserve":
            warming.set()
        if one.progress.step == "arm":
            arming.set()
    assert steps.index("reserve") < steps.index("arm")


async def test_somebody_else_may_watch_a_move(cluster: Cluster) -> None:
    session_id = await cluster.session()
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n1.Push")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    watching = asyncio.ensure_future(watch(cluster, move.move_id))
    leaving = cluster.stub.WatchMove(
        placement_pb2.WatchMoveRequest(move_id=move.move_id), timeout=60
    )
    await leaving.read()
    leaving.cancel()
    gate.set()
    record = await moving
    *told, last = await watching
    assert last.move.phase == record.phase == move_pb2.MOVE_PHASE_DONE
    assert all(one.progress.move_id == move.move_id for one in told)
    (after,) = await watch(cluster, move.move_id)
    assert after.move.move_id == move.move_id
    with pytest.raises(NotFound) as caught:
        await watch(cluster, "move-of-nobody")
    assert caught.value.reason == "MOVE_UNKNOWN"


async def test_slots_by_role_are_as_the_mover_says(cluster: Cluster) -> None:
    slot = move_pb2.SlotRef(node_id="n1", slot_index=0, generation=1)
    roles = ["SLOT_ROLE_LIVE", "SLOT_ROLE_SHADOW", "SLOT_ROLE_QUARANTINED", "SLOT_ROLE_SHADOW"]
    request = placement_pb2.RenewNodeRequest(node_id="n1", incarnation="j1")
    for role in roles:
        request.slots.add(slot=slot, role=role, session_id="s", device="cpu")
    await cluster.ask("RenewNode", request)
    nodes = (await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())).nodes
    (one,), (other,) = (node.devices for node in nodes)
    assert (one.slots_live, one.slots_shadow, one.slots_quarantined) == (1, 2, 1)
    assert (other.slots_live, other.slots_shadow, other.slots_quarantined) == (0, 0, 0)
    del request.slots[:]
    await cluster.ask("RenewNode", request)
    nodes = (await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())).nodes
    assert nodes[0].devices[0].slots_live == 0


async def test_a_block_is_the_owners_word_in_this_epoch(cluster: Cluster) -> None:
    session_id = await cluster.session()
    assert not (await cluster.resolve(session_id)).HasField("block_index")
    for engine, epoch, block in (("e1", 1, 5), ("e2", 1, 90), ("e2", 2, 91)):
        request = placement_pb2.RenewEngineRequest(engine_id=engine, incarnation="i1")
        request.running.add(session_id=session_id, epoch=epoch, block_index=block)
        await cluster.ask("RenewEngine", request)
    assert (await cluster.resolve(session_id)).block_index == 5
    await cluster.move(session_id)
    assert (await cluster.resolve(session_id)).block_index == 91
