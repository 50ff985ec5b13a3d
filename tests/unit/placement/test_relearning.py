"""An admission that has restarted is told what is under way, once, and then asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.unit.placement.cluster import SHORT, Cluster, running_cluster
from worldline.errors import Unavailable
from worldline.v1 import move_pb2, mover_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, nodes=3) as running:
        yield running


async def restart_admission(cluster: Cluster) -> None:
    """All that it held and knew is gone."""
    cluster.admission.held.clear()
    cluster.admission.relearning = True


async def asked(cluster: Cluster, times: int) -> None:
    """Until admission was asked so often, and everybody has its answer."""
    async with asyncio.timeout(60):
        while len(cluster.admission.asked) < times:  # noqa: ASYNC110 - the fake's count
            await asyncio.sleep(0)
        await cluster.ask("DescribePlacement", placement_pb2.DescribePlacementRequest())


def describes(cluster: Cluster) -> int:
    return sum(call.endswith(".DescribeMover") for call in cluster.faults.calls)


async def test_a_move_that_is_under_way_is_told_before_another_is_asked_about(
    cluster: Cluster,
) -> None:
    one, two = await cluster.session(), await cluster.session("n3")
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(one, "n2"))
    await cluster.faults.reach("n1.Push")
    assert cluster.placement is not None
    (running,) = cluster.placement.runtime.open_move_tasks()
    await restart_admission(cluster)
    assert (await cluster.move(two, "n2")).phase == move_pb2.MOVE_PHASE_DONE
    (told,) = cluster.admission.told
    (move,) = told.moves
    assert (move.ticket_id, move.move_id, move.session_id) == (
        running.ticket_id,
        running.move_id,
        one,
    )
    assert (move.source_node_id, move.target_node_id, move.target_engine_id) == ("n1", "n2", "e2")
    assert (move.target_host_id, move.extent_bytes, move.epoch) == ("here", 2048, 1)
    assert 0 < move.remaining_ms <= 60_000 + 400 + 2_000
    assert running.ticket_id in cluster.admission.held
    gate.set()
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_idle()


async def test_who_waits_for_it_shares_one_call(cluster: Cluster) -> None:
    sessions = [await cluster.session(node) for node in ("n1", "n2", "n3")]
    await restart_admission(cluster)
    gate = cluster.faults.hold("Relearn")
    moving = [asyncio.ensure_future(cluster.move(one, "")) for one in sessions]
    await cluster.faults.reach("Relearn")
    await asked(cluster, len(sessions))
    gate.set()
    records = await asyncio.gather(*moving)
    assert {record.phase for record in records} == {move_pb2.MOVE_PHASE_DONE}
    assert len(cluster.admission.told) == 1
    assert describes(cluster) == 3


async def test_one_that_waits_and_is_given_up_takes_nothing_from_the_others(
    cluster: Cluster,
) -> None:
    one, two = await cluster.session(), await cluster.session("n3")
    await restart_admission(cluster)
    gate = cluster.faults.hold("Relearn")
    first = asyncio.ensure_future(cluster.move(one, "n2"))
    await cluster.faults.reach("Relearn")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    second = asyncio.ensure_future(cluster.move(two, "n2"))
    await asked(cluster, 2)
    await cluster.verb("Rollback", move.move_id)
    gate.set()
    assert (await first).failure.reason == "CLIENT_ROLLBACK"
    assert (await second).phase == move_pb2.MOVE_PHASE_DONE
    assert len(cluster.admission.told) == 1
    cluster.check_idle()


async def test_wires_of_strangers_are_told_and_silent_movers_left_out(cluster: Cluster) -> None:
    session_id = await cluster.session()
    seen = mover_pb2.DescribeMoverResponse.Wire(
        ticket_id="t-x", move_id="x", source_node_id="n2", target_node_id="n3", remaining_ms=5
    )
    for name in ("n2", "n3"):
        cluster.movers[name].wires = [seen]
        cluster.movers[name].slots[3, 99] = ("x", "shadow")
    cluster.faults.fail("n2.DescribeMover", Unavailable("busy"))
    await restart_admission(cluster)
    assert (await cluster.move(session_id, "n2")).phase == move_pb2.MOVE_PHASE_DONE
    (told,) = cluster.admission.told
    assert [(one.ticket_id, one.extent_bytes) for one in told.moves] == [("t-x", 7)]


async def test_a_mover_that_does_not_answer_in_time_is_left_out(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=3, deadlines=SHORT) as cluster:
        session_id = await cluster.session()
        gate = cluster.faults.hold("n3.DescribeMover")
        await restart_admission(cluster)
        assert (await cluster.move(session_id, "n2")).phase == move_pb2.MOVE_PHASE_DONE
        gate.set()


async def test_what_paths_reached_is_told(cluster: Cluster) -> None:
    session_id = await cluster.session()
    first = await cluster.move(session_id, "n2")
    await restart_admission(cluster)
    await cluster.move(session_id, "n3")
    (told,) = cluster.admission.told
    (path,) = told.paths
    assert (path.source_node_id, path.target_node_id, path.samples) == ("n1", "n2", 1)
    assert path.rate_bytes_per_s == 2048e3
    assert path.setup_ms == first.frozen_ms - 1.0
    assert path.age_ms < 60_000


async def test_a_move_that_ends_while_it_is_told_holds_nothing_after(cluster: Cluster) -> None:
    """Its end came before the word that it runs: that is said again."""
    one, two = await cluster.session(), await cluster.session("n3")
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(one, "n2"))
    await cluster.faults.reach("n1.Push")
    await restart_admission(cluster)
    telling = cluster.faults.hold("Relearn")
    other = asyncio.ensure_future(cluster.move(two, "n2"))
    await cluster.faults.reach("Relearn")
    gate.set()
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE
    telling.set()
    assert (await other).phase == move_pb2.MOVE_PHASE_DONE
    (told,) = cluster.admission.told
    assert len(told.moves) == 1
    cluster.check_idle()
    assert "ENDED_WHILE_TOLD" in [one.reason for one in cluster.admission.finished]


async def test_a_move_that_ends_while_the_movers_are_asked_is_no_strangers(
    cluster: Cluster,
) -> None:
    one, two = await cluster.session(), await cluster.session("n3")
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(one, "n2"))
    await cluster.faults.reach("n1.Push")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    seen = mover_pb2.DescribeMoverResponse.Wire(
        ticket_id=move.ticket_id, move_id=move.move_id, source_node_id="n1", target_node_id="n2"
    )
    cluster.movers["n2"].wires = [seen]
    await restart_admission(cluster)
    describing = cluster.faults.hold("n2.DescribeMover")
    other = asyncio.ensure_future(cluster.move(two, "n2"))
    await cluster.faults.reach("n2.DescribeMover")
    gate.set()
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE
    describing.set()
    assert (await other).phase == move_pb2.MOVE_PHASE_DONE
    (told,) = cluster.admission.told
    assert not told.moves
    cluster.check_idle()


async def test_who_was_rejected_before_admission_was_told_only_asks_again(
    cluster: Cluster,
) -> None:
    assert cluster.placement is not None
    relearning = cluster.placement.relearning
    before = relearning.told
    await relearning.tell(before)
    await relearning.tell(before)
    assert len(cluster.admission.told) == 1
    await relearning.tell(relearning.told)
    assert len(cluster.admission.told) == 2


async def test_an_admission_that_never_learns_rejects_in_the_end(cluster: Cluster) -> None:
    session_id = await cluster.session()
    no = Verdict.reject(RejectReason.RELEARNING, "again", retry_after_ms=80)
    cluster.admission.verdicts = [no] * 10
    record = await cluster.move(session_id, "n2")
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert (record.verdict.reason, record.verdict.retry_after_ms) == (RejectReason.RELEARNING, 80)
    assert len(cluster.admission.told) == 2
    assert len(cluster.admission.asked) == 3
    cluster.admission.verdicts = []
    cluster.check_at(session_id, "e1")


async def test_an_admission_that_cannot_be_told_ends_the_move_and_is_told_by_the_next(
    cluster: Cluster,
) -> None:
    session_id = await cluster.session()
    await restart_admission(cluster)
    cluster.faults.fail("Relearn", Unavailable("gone again"))
    record = await cluster.move(session_id, "n2")
    assert (record.phase, record.failure.reason) == (move_pb2.MOVE_PHASE_ABORTED, "UNAVAILABLE")
    cluster.check_at(session_id, "e1")
    assert (await cluster.move(session_id, "n2")).phase == move_pb2.MOVE_PHASE_DONE


async def test_a_restarted_placement_tells_moves_that_it_rolls_back(
    cluster: Cluster,
) -> None:
    """Their tickets are in its records; how old they are is not, so the whole time is told."""
    one, two = await cluster.session(), await cluster.session("n3")
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(one, "n2"))
    await cluster.faults.reach("n1.Push")
    assert cluster.placement is not None
    (running,) = cluster.placement.runtime.open_move_tasks()
    await cluster.crash_placement()
    await asyncio.gather(moving, return_exceptions=True)
    gate.set()
    release = cluster.faults.hold("n2.Release")
    await cluster.start_placement()
    await cluster.faults.reach("n2.Release")
    await restart_admission(cluster)
    other = asyncio.ensure_future(cluster.move(two, "n1"))
    async with asyncio.timeout(60):
        while not cluster.admission.told:  # noqa: ASYNC110 - the fake's count
            await asyncio.sleep(0)
    (move,) = cluster.admission.told[0].moves
    assert (move.ticket_id, move.remaining_ms) == (running.ticket_id, 60_000 + 400 + 2_000)
    release.set()
    await other
    await cluster.ended(running.move_id)
    cluster.check_idle()
