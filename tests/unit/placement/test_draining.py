"""Draining: a node is emptied through real gRPC, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.placement import drain_task
from services.placement.drain_task import CLIENT_ID
from services.placement.drain_values import BULK_WAIT_MS, View
from tests.oracles import until
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import OTHER_WEIGHTS
from worldline.errors import InvalidInput, NotFound
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


async def drain(cluster: Cluster, *nodes: str, deadline_ms: int = 600_000) -> None:
    request = placement_pb2.DrainRequest(node_ids=nodes, deadline_ms=deadline_ms)
    await cluster.ask("Drain", request)


async def record(cluster: Cluster, node: str = "n1") -> Any:
    request = placement_pb2.DescribeDrainRequest(node_ids=[node])
    (found,) = (await cluster.ask("DescribeDrain", request)).drains
    return found


async def ended(cluster: Cluster, node: str = "n1") -> Any:
    async def complaints() -> list[str]:
        found = await record(cluster, node)
        return [f"{found}"] if found.state == "draining" else []

    await until(complaints)
    return await record(cluster, node)


async def undrain(cluster: Cluster, *nodes: str) -> list[str]:
    request = placement_pb2.UndrainRequest(node_ids=nodes)
    return list((await cluster.ask("Undrain", request)).node_ids)


async def where(cluster: Cluster, session_ids: list[str]) -> list[str]:
    return [(await cluster.resolve(one)).node_id for one in session_ids]


async def test_everybody_leaves_and_nobody_comes_before_it_is_undrained(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=3) as cluster:
        sessions = [await cluster.session("n1") for _ in range(3)]
        await drain(cluster, "n1")
        done = await ended(cluster)
        assert (done.state, done.sessions_moved, list(done.left)) == ("drained", 3, [])
        spread = Counter(await where(cluster, sessions))
        assert sorted(spread.values()) == [1, 2]
        assert spread.keys() == {"n2", "n3"}
        cluster.check_idle()
        # A named node is refused, and a free choice goes elsewhere; so do moves.
        refused = (await cluster.open("n1")).verdict
        assert refused.reason == move_pb2.REJECT_REASON_NO_TARGET
        assert "worldline undrain n1" in refused.explanation
        assert (await cluster.open("")).session.node_id in ("n2", "n3")
        moved = await cluster.move(sessions[0], "n1")
        assert moved.verdict.reason == move_pb2.REJECT_REASON_NO_TARGET
        nodes = (await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())).nodes
        assert {node.node_id: node.drain for node in nodes} == {"n1": "drained", "n2": "", "n3": ""}
        assert await undrain(cluster, "n1", "n2") == ["n1"]
        assert (await cluster.open("n1")).session.node_id == "n1"


async def test_its_moves_are_bulk_and_no_clients(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        session = await cluster.session("n1")
        await drain(cluster, "n1")
        assert (await ended(cluster)).state == "drained"
        await cluster.move(session, "n1")
        await undrain(cluster, "n1")
        await cluster.move(session, "n1")
        ordered, by_client = cluster.admission.asked
        assert (ordered.bulk_wait_ms, by_client.bulk_wait_ms) == (BULK_WAIT_MS, 0)
        assert ordered.contract.horizon_ms == by_client.contract.horizon_ms, "its stall is bounded"
        assert ordered.client_id == CLIENT_ID


async def test_a_reject_is_asked_again_and_a_rollback_too(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        session = await cluster.session("n1")
        busy = Verdict.reject(RejectReason.RECEIVER_BUSY, "busy", retry_after_ms=50)
        cluster.admission.verdicts += [busy, busy]
        cluster.faults.fail("n2.Reserve", NotFound("no such ticket"))
        await drain(cluster, "n1")
        assert (await ended(cluster)).state == "drained"
        assert await where(cluster, [session]) == ["n2"]
        moves = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
        assert [one.phase for one in moves] == [
            move_pb2.MOVE_PHASE_DONE,
            move_pb2.MOVE_PHASE_ABORTED,
            move_pb2.MOVE_PHASE_REJECTED,
            move_pb2.MOVE_PHASE_REJECTED,
        ]


async def test_who_cannot_leave_is_said_and_why(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        session = await cluster.session("n1")
        cluster.engines["e2"].fingerprint = OTHER_WEIGHTS
        await cluster.register_engine("e2", "i2")
        await drain(cluster, "n1")
        done = await ended(cluster)
        assert (done.state, done.sessions_moved) == ("incomplete", 0)
        (left,) = done.left
        assert (left.session_id, left.reason) == (session, "FINGERPRINT_MISMATCH")
        assert "another configuration" in left.message
        # Ended, and still closed: whoever comes back to it finds what is left of it.
        assert (await cluster.open("n1")).verdict.reason == move_pb2.REJECT_REASON_NO_TARGET


async def test_a_full_fleet_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        here = [await cluster.session("n1") for _ in range(2)]
        there = [await cluster.session("n2") for _ in range(3)]
        await drain(cluster, "n1", deadline_ms=600_000)

        async def full() -> list[str]:
            found = [(one.reason, one.move_id) for one in (await record(cluster)).left]
            return [] if found == [("TARGET_FULL", "")] else [str(found)]

        await until(full)
        await drain(cluster, "n1", deadline_ms=1)
        done = await ended(cluster)
        assert (done.state, done.sessions_moved) == ("incomplete", 1)
        (left,) = done.left
        assert left.session_id in here
        assert left.reason == "TARGET_FULL"
        assert "slots of n2 on cpu are taken" in left.message
        # One more closes, and the next drain moves who was left.
        await cluster.ask("CloseSession", placement_pb2.CloseSessionRequest(session_id=there[0]))
        await drain(cluster, "n1")
        assert (await ended(cluster)).state == "drained"
        assert await where(cluster, here) == ["n2", "n2"]


async def test_two_nodes_drained_together_leave_for_the_third(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=4) as cluster:
        sessions = [await cluster.session(node) for node in ("n1", "n2") for _ in range(2)]
        await drain(cluster, "n1", "n2")
        for node in ("n1", "n2"):
            assert (await ended(cluster, node)).state == "drained"
        assert set(await where(cluster, sessions)) <= {"n3", "n4"}


async def test_a_session_that_closes_and_one_that_is_suspended_meanwhile(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        closes, rests, leaves = [await cluster.session("n1") for _ in range(3)]
        gate = cluster.faults.hold("n1.Arm")
        suspend = placement_pb2.SuspendSessionRequest(session_id=rests)
        await cluster.ask("SuspendSession", suspend)
        await drain(cluster, "n1")
        await cluster.faults.reach("n1.Arm")
        gate.set()

        async def close() -> list[str]:
            try:
                request = placement_pb2.CloseSessionRequest(session_id=closes)
                await cluster.ask("CloseSession", request)
            except Exception as error:
                return [str(error)]
            return []

        await until(close)
        done = await ended(cluster)
        assert done.state == "incomplete"
        assert [(one.session_id, one.reason) for one in done.left] == [(rests, "SESSION_SUSPENDED")]
        assert await where(cluster, [leaves]) == ["n2"]
        # The drain is over and the node closed, and yet it is the only one that can resume it.
        await cluster.ask("ResumeSession", placement_pb2.ResumeSessionRequest(session_id=rests))
        await drain(cluster, "n1")
        assert (await ended(cluster)).state == "drained"


async def test_undrain_withdraws_what_waits_for_its_wire(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        session = await cluster.session("n1")
        gate = cluster.faults.hold("n1.Arm")
        await drain(cluster, "n1")
        await cluster.faults.reach("n1.Arm")
        (left,) = (await record(cluster)).left
        assert (left.session_id, left.target_node_id) == (session, "n2")
        assert left.move_id
        assert await undrain(cluster, "n1") == ["n1"]
        moved = await cluster.ended(left.move_id)
        assert (moved.phase, moved.failure.reason) == (move_pb2.MOVE_PHASE_ABORTED, "UNDRAINED")
        gate.set()
        assert (await cluster.open("n1")).session.node_id == "n1"
        assert await where(cluster, [session]) == ["n1"]


async def test_what_was_on_its_way_there_arrives_and_leaves_again(tmp_path: Path) -> None:
    """A world that opens, and a move whose target admission has yet to name."""
    async with running_cluster(tmp_path, nodes=3) as cluster:
        opens = cluster.faults.hold("e1.OpenWorld")
        opening = asyncio.ensure_future(cluster.session("n1"))
        await cluster.faults.reach("e1.OpenWorld")
        comes = await cluster.session("n2")
        admits = cluster.faults.hold("AdmitMove")
        cluster.admission.chosen_node_id = "n1"
        moving = asyncio.ensure_future(cluster.move(comes, ""))
        await cluster.faults.reach("AdmitMove")
        await drain(cluster, "n1")
        cluster.admission.chosen_node_id = ""

        async def waited_for() -> list[str]:
            left = [(one.state, one.reason) for one in (await record(cluster)).left]
            return [] if left == [("opening", "SESSION_OPENING")] else [str(left)]

        await until(waited_for)
        opens.set()
        cluster.admission.chosen_node_id = "n1"
        assert (await record(cluster)).state == "draining"
        admits.set()
        assert (await moving).phase == move_pb2.MOVE_PHASE_DONE
        cluster.admission.chosen_node_id = ""
        done = await ended(cluster)
        assert (done.state, done.sessions_moved) == ("drained", 2)
        assert "n1" not in await where(cluster, [await opening, comes])


async def test_who_asks_after_it_began_does_not_get_there(tmp_path: Path) -> None:
    """Admission is asked about nodes that are still open only."""
    async with running_cluster(tmp_path, nodes=3) as cluster:
        session = await cluster.session("n2")
        busy = Verdict.reject(RejectReason.PATH_UNMEASURED, "never measured")
        cluster.admission.verdicts.append(busy)
        probes = cluster.faults.hold("n2.Probe")
        cluster.admission.chosen_node_id = "n1"
        moving = asyncio.ensure_future(cluster.move(session, ""))
        await cluster.faults.reach("n2.Probe")
        await drain(cluster, "n1")
        probes.set()
        moved = await moving
        assert moved.phase == move_pb2.MOVE_PHASE_DONE
        assert moved.target_engine_id == "e3"
        named = [{one.node_id for one in asked.targets} for asked in cluster.admission.asked]
        assert named[0] == {"n1", "n3"}
        assert named[-1] == {"n3"}
        assert (await ended(cluster)).state == "drained"


async def test_what_waits_for_its_wire_gives_way_to_an_interactive_move(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        sessions = [await cluster.session("n1") for _ in range(3)]
        pushes, first = cluster.faults.hold("n1.Push"), cluster.faults.hold("n1.Arm")
        await drain(cluster, "n1")
        await cluster.faults.reach("n1.Arm")
        # The first has its wire from now on, and whoever is next waits for it.
        waits = cluster.faults.hold("n1.Arm")
        first.set()
        await cluster.faults.reach("n1.Push")
        await cluster.faults.reach("n1.Arm")
        left = (await record(cluster)).left
        (third,) = [one.session_id for one in left if not one.move_id]
        interactive = asyncio.ensure_future(cluster.move(third, "n2"))

        async def withdrawn() -> list[str]:
            moves = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
            ends = [one.failure.reason for one in moves]
            waits_for = {one.reason for one in (await record(cluster)).left}
            held = ends.count("GAVE_WAY") == 1 and "INTERACTIVE_FIRST" in waits_for
            return [] if held else [f"{ends}, {waits_for}"]

        await until(withdrawn)
        pushes.set()
        waits.set()
        assert (await interactive).phase == move_pb2.MOVE_PHASE_DONE
        done = await ended(cluster)
        assert (done.state, done.sessions_moved) == ("drained", 2)
        assert await where(cluster, sessions) == ["n2"] * 3


async def test_placement_dies_in_the_middle_and_goes_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=3) as cluster:
        sessions = [await cluster.session("n1") for _ in range(3)]
        gate = cluster.faults.hold("n1.Push")
        await drain(cluster, "n1")
        await cluster.faults.reach("n1.Push")
        await cluster.crash_placement()
        gate.set()
        await cluster.start_placement()
        assert (await cluster.open("n1")).verdict.reason == move_pb2.REJECT_REASON_NO_TARGET
        done = await ended(cluster)
        assert (done.state, list(done.left)) == ("drained", [])
        assert set(await where(cluster, sessions)) <= {"n2", "n3"}
        assert 0 < done.remaining_ms + done.elapsed_ms <= 600_000
        # What has ended stays so, and the node closed, over another restart.
        await cluster.crash_placement()
        await cluster.start_placement()
        assert (await record(cluster)).state == "drained"
        assert (await cluster.open("n1")).verdict.reason == move_pb2.REJECT_REASON_NO_TARGET


async def test_a_bug_in_the_task_is_met_by_beginning_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_view, bugs = drain_task.make_view, iter((True,))

    def buggy(*args: Any) -> View:
        if next(bugs, False):
            raise ZeroDivisionError
        return make_view(*args)

    monkeypatch.setattr(drain_task, "make_view", buggy)
    async with running_cluster(tmp_path, nodes=2) as cluster:
        await cluster.session("n1")
        await drain(cluster, "n1")
        done = await ended(cluster)
        assert (done.state, done.sessions_moved) == ("drained", 1)
        assert next(bugs, None) is None


async def test_a_placement_that_stops_leaves_the_drain_to_the_next(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        session = await cluster.session("n1")
        gate = cluster.faults.hold("n1.Arm")
        await drain(cluster, "n1")
        await cluster.faults.reach("n1.Arm")
        assert cluster.placement is not None
        await cluster.placement.runtime.stop(5)
        assert len(cluster.placement.runtime.owner) == 0
        await cluster.crash_placement()
        gate.set()
        await cluster.start_placement()
        assert (await ended(cluster)).state == "drained"
        assert await where(cluster, [session]) == ["n2"]


async def test_a_drain_that_is_asked_for_again_gets_the_new_deadline(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        await cluster.session("n1")
        gate = cluster.faults.hold("n1.Arm")
        await drain(cluster, "n1", deadline_ms=20_000)
        await cluster.faults.reach("n1.Arm")
        assert (await record(cluster)).remaining_ms <= 20_000
        await drain(cluster, "n1", deadline_ms=600_000)
        assert (await record(cluster)).remaining_ms > 500_000
        gate.set()
        assert (await ended(cluster)).sessions_moved == 1


async def test_who_watches_is_told_when_there_is_news(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        first = await cluster.ask("DescribeDrain", placement_pb2.DescribeDrainRequest())
        assert list(first.drains) == []
        request = placement_pb2.DescribeDrainRequest(seen=first.version, wait_ms=20_000)
        watching = asyncio.ensure_future(cluster.ask("DescribeDrain", request))
        await cluster.session("n1")
        assert not watching.done()
        await drain(cluster, "n1")
        answer = await watching
        assert answer.version != first.version
        assert [one.node_id for one in answer.drains] == ["n1"]
        await ended(cluster)


async def test_bad_requests_are_named_and_drain_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        with pytest.raises(InvalidInput) as caught:
            await drain(cluster)
        assert caught.value.field == "node_ids"
        with pytest.raises(NotFound) as unknown:
            await drain(cluster, "n1", "n9")
        assert unknown.value.reason == "NODE_UNKNOWN"
        with pytest.raises(InvalidInput) as late:
            await drain(cluster, "n1", deadline_ms=90_000_000)
        assert late.value.field == "deadline_ms"
        with pytest.raises(NotFound):
            await undrain(cluster, "n9")
        assert (await cluster.open("n1")).session.node_id == "n1"
