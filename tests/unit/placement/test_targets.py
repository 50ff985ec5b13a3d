"""Candidates of a move: what admission is asked about, and that its choice is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.placement import move_table
from services.placement.choose import Chosen
from services.placement.fleet import Fleet
from services.placement.targets import Target, named_target, target_of
from services.placement.values import Party
from tests.unit.placement.cluster import DIGEST_RATE_BYTES_PER_S, Cluster, running_cluster
from tests.unit.placement.faults import LAYOUT
from tests.unit.placement.makers import candidate, engine, node
from worldline.errors import InvalidInput
from worldline.v1 import admission_pb2, move_pb2
from worldline.verdict import RejectReason, Verdict

ONE = Target(Party("e1", "i1", "n1", "j1"), "h1", 2, digest_rate_bytes_per_s=5e9)
TWO = Target(Party("e2", "i1", "n2", "j1"), "h2", 3, tier_dropped=True)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes, the second of which comes before the third: it has more room."""
    async with running_cluster(tmp_path, nodes=3) as running:
        running.movers["n2"].slots_total = 8
        await running.register_node("n2")
        yield running


def asked_about(request: admission_pb2.AdmitMoveRequest) -> list[tuple[str, str, int]]:
    return [(one.node_id, one.engine_id, one.slots_free) for one in request.targets]


async def test_admission_is_asked_about_all_that_fit(cluster: Cluster) -> None:
    session_id = await cluster.session()
    await cluster.session("n2")
    record = await cluster.move(session_id, "", saves_ms=250.0)
    (request,) = cluster.admission.asked
    assert asked_about(request) == [("n2", "e2", 7), ("n3", "e3", 4)]
    assert {one.host_id for one in request.targets} == {"here"}
    assert {one.digest_rate_bytes_per_s for one in request.targets} == {DIGEST_RATE_BYTES_PER_S}
    assert (request.saves_ms, request.extent_bytes) == (250.0, LAYOUT.extent_bytes)
    assert record.target_engine_id == "e2"


async def test_a_named_node_is_all_that_admission_is_asked_about(cluster: Cluster) -> None:
    session_id = await cluster.session()
    await cluster.move(session_id, "n2")
    (request,) = cluster.admission.asked
    assert asked_about(request) == [("n2", "e2", 8)]
    assert request.saves_ms == 0


async def test_the_verbs_say_what_the_move_saves_too(cluster: Cluster) -> None:
    session_id = await cluster.session()
    admitted = await cluster.admit(session_id, "", saves_ms=75.0)
    assert cluster.admission.asked[0].saves_ms == 75.0
    await cluster.verb("Rollback", admitted.move_id)


@pytest.mark.parametrize("saves_ms", [-1.0, float("nan"), float("inf")])
async def test_savings_are_a_duration(cluster: Cluster, saves_ms: float) -> None:
    session_id = await cluster.session()
    for ask in (cluster.move, cluster.admit):
        with pytest.raises(InvalidInput) as caught:
            await ask(session_id, saves_ms=saves_ms)
        assert caught.value.field == "saves_ms"
    assert not cluster.admission.asked


async def test_the_move_goes_where_admission_lets_it(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.chosen_node_id = "n3"
    record = await cluster.move(session_id, "")
    assert asked_about(cluster.admission.asked[0])[0][0] == "n2", "not the first of them"
    assert (record.phase, record.target_engine_id) == (move_pb2.MOVE_PHASE_DONE, "e3")
    assert not any(call.startswith(("n2.", "e2.")) for call in cluster.faults.calls)
    assert (await cluster.resolve(session_id)).node_id == "n3"
    cluster.check_at(session_id, "e3")


@pytest.mark.parametrize("method", ["n3.Reserve", "n1.Arm", "n1.Push", "n3.Verify", "e3.Attach"])
async def test_placement_dies_after_admission_chose_another_target(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As after a power cut: the only phase on record is that of the choice, and it was there before
    anything was asked of the target."""
    monkeypatch.setattr(move_table, "save_move", lambda db, entry: None)
    session_id = await cluster.session()
    cluster.admission.chosen_node_id = "n3"
    gate = cluster.faults.hold(method)
    moving = asyncio.ensure_future(cluster.move(session_id, ""))
    await cluster.faults.reach(method)
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    assert (await cluster.record(move.move_id)).target_engine_id == "e3"
    await cluster.crash_placement()
    await asyncio.gather(moving, return_exceptions=True)
    gate.set()
    monkeypatch.undo()
    await cluster.start_placement()
    record = await cluster.ended(move.move_id)
    assert record.failure.reason == "PLACEMENT_RESTARTED"
    assert record.target_engine_id == "e3"
    cluster.check_at(session_id, "e1")


async def test_a_target_that_cannot_be_recorded_is_asked_for_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(db: Any, entry: Any) -> None:
        raise move_table.sqlite3.OperationalError("disk full")

    monkeypatch.setattr(move_table, "save_target", full)
    session_id = await cluster.session()
    cluster.admission.chosen_node_id = "n3"
    record = await cluster.move(session_id, "")
    assert record.failure.reason == "DIRECTORY_FAILED"
    assert not {"n3.Reserve", "e3.WarmWorld", "n1.Arm"} & set(cluster.faults.calls)
    cluster.check_at(session_id, "e1")


async def test_the_path_that_admission_names_is_measured(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.measured = False
    cluster.admission.chosen_node_id = "n3"
    record = await cluster.move(session_id, "")
    assert record.phase == move_pb2.MOVE_PHASE_DONE
    first, *probes, again = cluster.admission.asked
    assert probes
    for probe in probes:
        assert asked_about(probe) == [("n3", "e3", 4)]
        assert probe.purpose == move_pb2.MOVE_PURPOSE_PROBE
    assert asked_about(first) == asked_about(again)
    assert {call for call in cluster.faults.calls if call.endswith("Reserve")} == {"n3.Reserve"}
    cluster.check_at(session_id, "e3")


async def test_a_reject_is_shown_with_the_target_that_its_numbers_are_of(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.chosen_node_id = "n3"
    cluster.admission.verdicts = [Verdict.reject(RejectReason.HORIZON_TOO_SHORT, "too slow")]
    record = await cluster.move(session_id, "")
    assert (record.phase, record.target_engine_id) == (move_pb2.MOVE_PHASE_REJECTED, "e3")
    cluster.check_at(session_id, "e1")


async def test_a_busy_receiver_is_admissions_to_judge(cluster: Cluster) -> None:
    """Two moves into one node: the second is asked about, before the slot of the first."""
    one, two = await cluster.session(), await cluster.session("n3")
    gate = cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(one, "n2"))
    await cluster.faults.reach("n1.Push")
    assert (await cluster.move(two, "n2")).phase == move_pb2.MOVE_PHASE_DONE
    assert asked_about(cluster.admission.asked[1]) == [("n2", "e2", 8)]
    gate.set()
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE


def test_an_answer_names_one_of_the_targets_or_none() -> None:
    named = admission_pb2.AdmitMoveResponse(target_node_id="n2", target_engine_id="e2")
    assert named_target((ONE, TWO), named) is TWO
    assert named_target((ONE, TWO), admission_pb2.AdmitMoveResponse()) is None
    for wrong in (
        admission_pb2.AdmitMoveResponse(target_node_id="n2", target_engine_id="e1"),
        admission_pb2.AdmitMoveResponse(target_node_id="n2"),
    ):
        with pytest.raises(InvalidInput, match="not asked about"):
            named_target((ONE, TWO), wrong)


def test_targets_say_what_admission_needs() -> None:
    fleet = Fleet(node_lease_ms=1_000, engine_lease_ms=1_000)
    for name in ("1", "2"):
        fleet.put_node(node(name), 0.0)
        fleet.put_engine(engine(name), 0.0)
    first = candidate("1", slots_free=0, slots_for_moves=2, digest_rate_bytes_per_s=5e9)
    assert target_of(Chosen("e1"), first, fleet) == ONE
    second = candidate("2", slots_free=3)
    assert target_of(Chosen("e2", tier_dropped=True), second, fleet) == TWO
    assert ONE.to_proto() == admission_pb2.MoveTarget(
        node_id="n1", engine_id="e1", host_id="h1", slots_free=2, digest_rate_bytes_per_s=5e9
    )
