"""Target rooms: a move is held against the periods that its target has promised already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.placement.choose import no_room_for_period
from tests.rows import row
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import contract
from tests.unit.placement.test_draining import drain, ended, where
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_to_proto
from worldline.errors import CapacityExhausted, Unavailable
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict

#: A block of the rows here takes 376 ms: one of these fits a device, two do not.
PACED = contract(period_ms=400.0)
TINY = RequestShape("tiny")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, nodes=3) as one:
        one.admission.reckons = True
        yield one


async def opened(cluster: Cluster, node_id: str) -> str:
    answer = await cluster.open(node_id, of=PACED)
    assert answer.verdict.admitted, answer.verdict.explanation
    return str(answer.session.session_id)


def overcommitted(verdict: Any) -> bool:
    return bool(verdict.reason == move_pb2.REJECT_REASON_DEVICE_OVERCOMMITTED)


async def test_the_target_is_measured_and_then_promises_the_period(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    assert cluster.engines["e2"].measured == []
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_DONE
    assert cluster.engines["e2"].measured == [TINY]
    cluster.check_at(session_id, "e2")
    # It is counted where it is now, and no more where it was.
    assert overcommitted((await cluster.open("n2", of=PACED)).verdict)
    assert (await cluster.open("n1", of=PACED)).verdict.admitted


async def test_a_client_that_paces_its_world_moves_unasked(cluster: Cluster) -> None:
    session_id = await cluster.session()
    asked = len(cluster.admission.loads)
    await opened(cluster, "n2")
    loads = len(cluster.admission.loads)
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    assert loads > asked
    assert len(cluster.admission.loads) == loads


async def test_a_target_that_cannot_keep_the_period_is_not_chosen(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    await opened(cluster, "n2")
    cluster.admission.chosen_node_id = "n2"  # as far as the wires go
    record = await cluster.move(session_id, "")
    assert record.phase == move_pb2.MOVE_PHASE_DONE
    assert record.target_engine_id == "e3"
    (asked,) = cluster.admission.asked
    assert [one.node_id for one in asked.targets] == ["n3"]


async def test_the_reject_says_what_is_in_the_way_and_what_helps(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    await opened(cluster, "n2")
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert overcommitted(record.verdict)
    text = record.verdict.explanation
    assert "no target can keep the session's period of 400 ms: e2 would be 188% busy" in text
    assert "95% is allowed" in text
    assert "make room there" in text
    numbers = record.verdict.numbers
    assert numbers["utilization_wanted"] == pytest.approx(2 * 375.6 / 400.0)
    assert numbers["utilization_max"] == pytest.approx(0.95)
    assert numbers["block_ms"] == pytest.approx(375.6)
    assert record.verdict.retry_after_ms > 0
    assert cluster.admission.asked == [], "nobody plans its wires"
    cluster.check_idle()
    assert (await cluster.resolve(session_id)).state == "live"


async def test_what_cannot_be_measured_is_not_promised(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    cluster.faults.fail("e2.WarmWorld", CapacityExhausted("all are lent"))
    record = await cluster.move(session_id)
    assert record.verdict.reason == move_pb2.REJECT_REASON_QUANTUM_UNMEASURED
    assert record.verdict.retry_after_ms > 0
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE


async def test_of_two_moves_at_once_one_has_the_last_room(cluster: Cluster) -> None:
    first, second = await opened(cluster, "n1"), await opened(cluster, "n3")
    gate = cluster.faults.hold("n2.Reserve")
    moves = [asyncio.ensure_future(cluster.move(one)) for one in (first, second)]
    await cluster.faults.reach("n2.Reserve")
    done, under_way = await asyncio.wait(moves, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = (one.result() for one in done)
    assert overcommitted(refused.verdict)
    gate.set()
    (went,) = [await one for one in under_way]
    assert went.phase == move_pb2.MOVE_PHASE_DONE
    assert sorted(await where(cluster, [first, second])) in (["n1", "n2"], ["n2", "n3"])


async def test_two_moves_that_may_go_anywhere_share_what_there_is(tmp_path: Path) -> None:
    """Neither is kept off by what the other only looked at."""
    async with running_cluster(tmp_path, nodes=4) as cluster:
        cluster.admission.reckons = True
        first, second = await opened(cluster, "n1"), await opened(cluster, "n2")
        records = await asyncio.gather(*(cluster.move(one, "") for one in (first, second)))
        assert [one.phase for one in records] == [move_pb2.MOVE_PHASE_DONE] * 2
        assert len(set(await where(cluster, [first, second]))) == 2


async def test_an_open_is_held_against_a_move_that_is_under_way(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    gate = cluster.faults.hold("AdmitMove")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("AdmitMove")
    # Its turn: what asks meanwhile is decided with it counted.
    opening = asyncio.ensure_future(cluster.open("n2", of=PACED))
    await cluster.resolve(session_id)
    gate.set()
    assert overcommitted((await opening).verdict)
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE


async def test_a_move_is_held_against_an_open_that_is_under_way(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    gate = cluster.faults.hold("e2.OpenWorld")
    opening = asyncio.ensure_future(cluster.open("n2", of=PACED))
    await cluster.faults.reach("e2.OpenWorld")
    assert overcommitted((await cluster.move(session_id)).verdict)
    gate.set()
    assert (await opening).verdict.admitted


BUSY = Verdict.reject(RejectReason.RECEIVER_BUSY, "busy", retry_after_ms=9)


@pytest.mark.parametrize(
    "method", ["AdmitMove", "n2.Reserve", "n1.Arm", "e1.Freeze", "n1.Push", "e2.Attach", ""]
)
async def test_every_way_out_of_a_move_gives_the_room_back(cluster: Cluster, method: str) -> None:
    session_id = await opened(cluster, "n1")
    if method:
        cluster.faults.fail(method, *[Unavailable("away")] * 3)
    else:
        cluster.admission.verdicts.append(BUSY)
    record = await cluster.move(session_id)
    assert record.phase in (move_pb2.MOVE_PHASE_ABORTED, move_pb2.MOVE_PHASE_REJECTED)
    assert (await cluster.open("n2", of=PACED)).verdict.admitted


async def test_a_move_at_rest_has_its_room_until_its_client_gives_it_up(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    admitted = await cluster.admit(session_id)
    assert admitted.verdict.admitted
    assert overcommitted((await cluster.open("n2", of=PACED)).verdict)
    await cluster.verb("Rollback", admitted.move_id)
    assert (await cluster.open("n2", of=PACED)).verdict.admitted


async def test_a_restart_of_placement_leaves_no_room_behind(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    cluster.faults.hold("n2.Reserve")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n2.Reserve")
    await cluster.crash_placement()
    await asyncio.gather(moving, return_exceptions=True)
    cluster.faults.gates.pop("n2.Reserve").set()
    await cluster.start_placement()
    (record,) = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
    await cluster.ended(record.move_id)
    assert (await cluster.open("n2", of=PACED)).verdict.admitted


async def told(cluster: Cluster, engine_id: str, quantum_ms: float) -> None:
    """The engine says so of itself."""
    rows = [row_to_proto(row("tiny", quantum_ms=quantum_ms))]
    request = placement_pb2.RenewEngineRequest(engine_id=engine_id, incarnation="i1", rows=rows)
    await cluster.ask("RenewEngine", request)


async def test_a_drain_leaves_who_fits_nowhere_and_takes_the_others(cluster: Cluster) -> None:
    paced, free = await opened(cluster, "n1"), await cluster.session("n1")
    for engine_id in ("e2", "e3"):
        await told(cluster, engine_id, quantum_ms=200.0)
    await drain(cluster, "n1")
    done = await ended(cluster)
    assert (done.state, done.sessions_moved) == ("incomplete", 1)
    (left,) = done.left
    assert (left.session_id, left.reason) == (paced, "DEVICE_OVERCOMMITTED")
    assert "too slow for that period even when empty" in left.message
    assert (await where(cluster, [paced, free]))[0] == "n1"


async def test_a_drain_comes_back_for_who_fits_later(cluster: Cluster) -> None:
    session_id = await opened(cluster, "n1")
    others = [await opened(cluster, "n2"), await opened(cluster, "n3")]
    await drain(cluster, "n1")
    refused: list[Any] = []
    while not refused:
        moves = (await cluster.ask("ListMoves", placement_pb2.ListMovesRequest())).moves
        refused = [one for one in moves if overcommitted(one.verdict)]
    await cluster.ask("CloseSession", placement_pb2.CloseSessionRequest(session_id=others[1]))
    assert (await ended(cluster)).state == "drained"
    assert await where(cluster, [session_id]) == ["n3"]


def test_the_numbers_are_of_the_target_that_comes_closest() -> None:
    def no(wanted: float, retry_after_ms: int) -> Verdict:
        numbers = {"utilization_wanted": wanted}
        reason = RejectReason.DEVICE_OVERCOMMITTED
        return Verdict.reject(reason, f"{wanted:.0%} busy", numbers, retry_after_ms=retry_after_ms)

    verdict = no_room_for_period(400.0, [no(1.9, 0), no(1.2, 1000)])
    assert verdict.reason is RejectReason.DEVICE_OVERCOMMITTED
    assert verdict.numbers == {"candidates": 2.0, "utilization_wanted": 1.2}
    assert verdict.retry_after_ms == 1000
    unmeasured = Verdict.reject(RejectReason.QUANTUM_UNMEASURED, "unknown", retry_after_ms=9)
    mixed = no_room_for_period(400.0, [no(1.9, 0), unmeasured])
    assert mixed.reason is RejectReason.NO_TARGET
    assert "190% busy; unknown; make room there" in mixed.explanation
