"""A move that waits for its wire: how long, and what is left of it when it is withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.placement import probe, steps
from services.placement.limits import Limits
from services.placement.phases import MovePhase
from services.placement.values import Ticket
from tests.unit.placement.cluster import DEADLINES, Cluster, running_cluster
from worldline.errors import CapacityExhausted
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import RejectReason

TOO_LATE = CapacityExhausted(
    "two moves are ahead and the wire would come 70 ms too late",
    reason="WIRE_TOO_LATE",
    retry_after_ms=270,
)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


async def test_too_late_for_the_wire_is_a_reject_and_the_world_never_froze(
    cluster: Cluster,
) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("n1.Arm", TOO_LATE)
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert record.verdict.reason == RejectReason.WIRE_TOO_LATE
    assert record.verdict.retry_after_ms == 270
    assert record.verdict.explanation == TOO_LATE.message
    numbers = dict(record.verdict.numbers)
    assert numbers.pop("waited_ms") >= 0
    assert numbers == {
        "horizon_ms": 400.0,
        "move_ms": 100.0,
        "wire_ms": 50.0,
        "wait_max_ms": 300.0,
    }
    assert not record.HasField("failure")
    assert "e1.Freeze" not in cluster.faults.calls
    assert "e1.Thaw" not in cluster.faults.calls
    cluster.check_at(session_id, "e1")
    (finished,) = cluster.admission.finished
    assert (finished.reason, finished.committed) == ("WIRE_TOO_LATE", False)
    described = await cluster.ask("DescribePlacement", placement_pb2.DescribePlacementRequest())
    assert described.moves_by_outcome == {"rejected:WIRE_TOO_LATE": 1}
    # And nothing stands in the way of the next one.
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_at(session_id, "e2")


async def test_a_probe_that_waits_in_vain_is_a_reject(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.measured = False
    cluster.faults.fail("n1.Probe", TOO_LATE)
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert record.verdict.reason == RejectReason.WIRE_TOO_LATE
    assert record.verdict.retry_after_ms == 270
    cluster.check_at(session_id, "e1")


@pytest.mark.parametrize(
    ("call", "reason"), [("n1.Probe", "PROBE_GAVE_WAY"), ("n2.Reserve", "NO_FREE_SLOT")]
)
async def test_a_probe_whose_slot_another_needs_is_a_reject(
    cluster: Cluster, call: str, reason: str
) -> None:
    """The target is full then; the path is measured when somebody asks again."""
    session_id = await cluster.session()
    cluster.admission.measured = False
    cluster.faults.fail(call, CapacityExhausted("somebody needed it", reason=reason))
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert record.verdict.reason == RejectReason.TARGET_FULL
    assert record.verdict.explanation == "somebody needed it"
    assert record.verdict.retry_after_ms > 0
    assert not cluster.admission.measured
    cluster.check_at(session_id, "e1")
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    assert cluster.admission.measured
    cluster.check_at(session_id, "e2")


async def test_a_repeat_of_a_probe_that_waits_in_vain_leaves_the_path_measured(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pushed = probe.Probe._push, []

    async def crowded(*args: Any) -> Any:
        pushed.append(args)
        if len(pushed) > probe.PUSHES_MIN:
            raise TOO_LATE
        return await real(*args)

    monkeypatch.setattr(probe.Probe, "_push", crowded)
    session_id = await cluster.session()
    cluster.admission.measured = False
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    assert len(pushed) == probe.PUSHES_MIN + 1
    cluster.check_at(session_id, "e2")


async def test_no_room_for_other_reasons_is_a_failure_as_before(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("n1.Arm", CapacityExhausted("no buffers", reason="STAGING_BUSY"))
    record = await cluster.move(session_id)
    assert (record.phase, record.failure.reason) == (
        move_pb2.MOVE_PHASE_ABORTED,
        "STAGING_BUSY",
    )
    cluster.check_at(session_id, "e1")


async def test_a_verb_on_a_withdrawn_move_says_why(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("n1.Arm", TOO_LATE)
    admitted = await cluster.admit(session_id)
    with pytest.raises(Exception, match="WIRE_TOO_LATE") as caught:
        await cluster.migrate(admitted.move_id)
    assert getattr(caught.value, "retry_after_ms", None) == 270
    cluster.check_at(session_id, "e1")


async def test_a_client_that_gives_up_a_waiting_move_withdraws_it(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.hold("n1.Arm")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n1.Arm")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    await cluster.verb("Rollback", move.move_id)
    async with asyncio.timeout(60):
        await cluster.movers["n1"].withdrawn.wait()
    record = await moving
    assert record.failure.reason == "CLIENT_ROLLBACK"
    assert "e1.Freeze" not in cluster.faults.calls
    cluster.check_at(session_id, "e1")


async def test_the_end_of_placement_withdraws_a_waiting_move(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.hold("n1.Arm")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n1.Arm")
    assert cluster.placement is not None
    async with asyncio.timeout(60):
        await cluster.placement.runtime.stop(5)
        await cluster.movers["n1"].withdrawn.wait()
    assert (await moving).failure.reason == "PLACEMENT_STOPPING"
    cluster.check_at(session_id, "e1")


async def test_the_arming_may_last_as_long_as_the_ticket_lets_it_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, limits = [], {}

    class Noted(steps.PushCall):
        def __init__(self, mover: Any, order: Any, timeout_s: float) -> None:
            calls.append(timeout_s)
            super().__init__(mover, order, timeout_s)

    def within(limit_s: float, what: str) -> Any:
        limits[what] = limit_s
        return asyncio.timeout(limit_s)

    monkeypatch.setattr(steps, "PushCall", Noted)
    monkeypatch.setattr(steps, "_within", within)
    session_id = await cluster.session()
    cluster.admission.horizon_ms = 7_000_100.0  # 100 ms of them are the move's own
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    assert calls == [DEADLINES.of_push_call(7_000.0)]
    assert limits["arming the push"] == DEADLINES.of_arming(7_000.0)
    assert DEADLINES.of_arming(7_000.0) == DEADLINES.of_arming(0.0) + 7_000.0
    assert DEADLINES.of_push_call(7_000.0) > DEADLINES.of_arming(7_000.0) + DEADLINES.push_s


def test_only_the_phase_that_waits_is_longer() -> None:
    limits = Limits()
    for phase in MovePhase:
        usual, waiting = (limits.of(phase, resting=False, wait_s=wait_s) for wait_s in (0.0, 7.0))
        if phase is MovePhase.ADMITTED:
            assert (usual, waiting) == (limits.admitted_s, limits.admitted_s + 7.0)
        else:
            assert usual == waiting
    assert limits.of(MovePhase.ADMITTED, resting=True, wait_s=7.0) == limits.rest_s


def test_a_ticket_says_how_long_it_may_wait_and_last() -> None:
    ticket = Ticket("t", valid_for_ms=1_000, lease_ms=500, horizon_ms=400.0, move_ms=100.0)
    assert ticket.wait_ms == 300.0
    assert ticket.lasts_ms == 1_000 + 400 + 2 * 500
    probe = Ticket("t", valid_for_ms=1_000, lease_ms=500, horizon_ms=0.0, move_ms=100.0)
    assert probe.wait_ms == 0.0
