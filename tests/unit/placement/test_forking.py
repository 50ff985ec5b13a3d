"""Forks of live sessions: all branches or none, whatever fails in between."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.placement import branch_table, session_table
from services.placement.forking import _says_no
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import contract
from worldline.contract import contract_to_proto
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    InvariantBroken,
    NotFound,
    Unavailable,
    WorldlineError,
)
from worldline.v1 import engine_pb2, move_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def fork(cluster: Cluster, session_id: str, count: int = 2, **facts: Any) -> Any:
    request = placement_pb2.ForkSessionRequest(session_id=session_id, count=count, **facts)
    return await cluster.ask("ForkSession", request)


async def listed(cluster: Cluster) -> dict[str, Any]:
    answer = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
    return {one.session_id: one for one in answer.sessions}


async def close(cluster: Cluster, session_id: str) -> None:
    await cluster.ask("CloseSession", placement_pb2.CloseSessionRequest(session_id=session_id))


async def alone(cluster: Cluster, session_id: str) -> None:
    """The parent lives and nothing of a fork is left."""
    assert list(await listed(cluster)) == [session_id]
    assert (await cluster.resolve(session_id)).state == "live"
    cluster.check_at(session_id, "e1")


async def test_branches_are_sessions_like_any(cluster: Cluster) -> None:
    parent = (await cluster.open()).session
    answer = await fork(cluster, parent.session_id, 3)
    assert answer.verdict.admitted
    assert answer.verdict.numbers["state_bytes"] == 3 * 2048
    branches = {one.session_id: one for one in answer.branches}
    assert len(branches) == 3
    found = await listed(cluster)
    assert found == {parent.session_id: parent, **branches}
    for number, one in enumerate(answer.branches):
        assert (one.state, one.epoch, one.node_id) == ("live", 1, parent.node_id)
        assert (one.contract, one.world) == (parent.contract, parent.world)
        assert one.forked_from == placement_pb2.ForkedFrom(
            session_id=parent.session_id, epoch=1, block_index=7, branch=number
        )
    assert not parent.HasField("forked_from")
    assert len({one.slot.slot_index for one in found.values()}) == 4
    assert await cluster.renew_engine("e1") == dict.fromkeys(found, 1)
    # Each was decided with those before it counted.
    assert [one.slots_used for one in cluster.admission.loads] == [0, 1, 2, 3]


async def test_branches_outlive_their_parent_and_move(cluster: Cluster) -> None:
    parent = await cluster.session()
    first, second = (await fork(cluster, parent)).branches
    await close(cluster, parent)
    assert (await cluster.move(first.session_id)).phase == move_pb2.MOVE_PHASE_DONE
    await close(cluster, second.session_id)
    moved = await cluster.resolve(first.session_id)
    assert (moved.node_id, moved.epoch) == ("n2", 2)
    assert moved.forked_from == first.forked_from
    cluster.check_at(first.session_id, "e2")


async def test_what_is_asked_for_reaches_the_engine(cluster: Cluster) -> None:
    parent = await cluster.session()
    other = contract_to_proto(contract(horizon_ms=50.0))
    await fork(cluster, parent, 1)
    await fork(cluster, parent, 2, contract=other, same_noise=True)
    await fork(cluster, parent, 1, first_branch=0)
    one, two, three = cluster.engines["e1"].forks
    assert [each.number for each in one.branches] == [0]
    assert [each.number for each in two.branches] == [1, 2], "numbers go on"
    assert [each.number for each in three.branches] == [0], "unless one is asked for again"
    assert (one.same_noise, two.same_noise) == (False, True)
    assert two.contract == other
    assert one.contract == contract_to_proto(contract())


async def test_no_room_for_all_is_a_reject_with_the_numbers(cluster: Cluster) -> None:
    parent = await cluster.session()
    cluster.admission.session_verdicts = [
        Verdict.admit("room"),
        Verdict.reject(RejectReason.DEVICE_FULL, "all in use", {"slots_total": 4.0}, 500),
    ]
    answer = await fork(cluster, parent, 3)
    assert not answer.branches
    verdict = answer.verdict
    assert (verdict.reason, verdict.retry_after_ms) == (RejectReason.DEVICE_FULL, 500)
    assert dict(verdict.numbers) == {
        "slots_total": 4.0,
        "branches": 3.0,
        "branches_with_room": 1.0,
    }
    assert "e1.ForkWorld" not in cluster.faults.calls
    await alone(cluster, parent)


async def test_a_drained_node_takes_no_branches(cluster: Cluster) -> None:
    parent = await cluster.session()
    assert cluster.placement is not None
    cluster.placement.fleet.cordon("n1")
    answer = await fork(cluster, parent)
    assert answer.verdict.reason == RejectReason.NO_TARGET
    assert "undrain n1" in answer.verdict.explanation
    await alone(cluster, parent)


async def test_an_engine_without_room_leaves_nothing(cluster: Cluster) -> None:
    parent = await cluster.session()
    cluster.faults.fail("e1.ForkWorld", CapacityExhausted("no slot"))
    answer = await fork(cluster, parent)
    assert answer.verdict.reason == RejectReason.DEVICE_FULL
    await alone(cluster, parent)


@pytest.mark.parametrize(
    "error",
    [
        Conflict("frozen", reason="WORLD_FROZEN"),
        InvalidInput("no noise", reason="NOISE_NOT_SPLIT", field="same_noise"),
        Unavailable("the engine is gone"),
    ],
    ids=lambda error: error.reason,
)
async def test_what_the_engine_says_is_said_and_nothing_is_left(
    cluster: Cluster, error: WorldlineError
) -> None:
    parent = await cluster.session()
    cluster.faults.fail("e1.ForkWorld", error)
    with pytest.raises(type(error)) as caught:
        await fork(cluster, parent)
    assert (caught.value.reason, caught.value.field) == (error.reason, error.field)
    await alone(cluster, parent)


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (CapacityExhausted("no slot"), 0),
        (Conflict("frozen", reason="WORLD_FROZEN"), 0),
        (DeadlineExceeded("no boundary"), 0),
        # Whether it has made them nobody knows.
        (Unavailable("the engine is gone"), 2),
        (InvariantBroken("a bug"), 2),
    ],
    ids=lambda value: getattr(value, "reason", ""),
)
async def test_a_refused_fork_takes_no_numbers(
    cluster: Cluster, error: WorldlineError, first: int
) -> None:
    parent = await cluster.session()
    cluster.faults.fail("e1.ForkWorld", error)
    with contextlib.suppress(WorldlineError):
        await fork(cluster, parent, 2)
    await fork(cluster, parent, 2)
    (made,) = cluster.engines["e1"].forks
    assert [one.number for one in made.branches] == [first, first + 1]


async def test_a_fork_that_nobody_answered_keeps_its_numbers(cluster: Cluster) -> None:
    """What gRPC itself says of a call says nothing of what it did."""
    parent = await cluster.session()
    cluster.faults.lose_reply("e1.ForkWorld", Unavailable("the reply is lost"))
    with pytest.raises(Unavailable):
        await fork(cluster, parent, 2)
    await fork(cluster, parent, 1)
    assert [[one.number for one in each.branches] for each in cluster.engines["e1"].forks] == [
        [0, 1],
        [2],
    ]
    unanswered = CapacityExhausted("message larger than max")
    unanswered.__cause__ = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata()
    )
    assert not _says_no(unanswered)


async def test_a_fork_whose_reply_is_lost_is_undone(cluster: Cluster) -> None:
    parent = await cluster.session()
    cluster.faults.lose_reply("e1.ForkWorld", Unavailable("the reply is lost"))
    with pytest.raises(Unavailable):
        await fork(cluster, parent, 2)
    assert list(cluster.engines["e1"].worlds) == [parent]
    assert list(await listed(cluster)) == [parent]
    # Their slots are nobody's from now on, and are named so at the node's next renewal.
    assert len(cluster.movers["n1"].slots) == 1 + 2


async def test_an_engine_that_made_fewer_is_not_believed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await cluster.session()

    async def fewer(request: Any, context: Any) -> Any:
        return engine_pb2.ForkWorldResponse(block_index=7)

    monkeypatch.setattr(cluster.engines["e1"], "_do", lambda _name, _work: fewer(None, None))
    with pytest.raises(InvalidInput):
        await fork(cluster, parent)
    monkeypatch.undo()
    await alone(cluster, parent)


async def test_an_idempotency_key_forks_once(cluster: Cluster) -> None:
    parent = await cluster.session()
    many = await asyncio.gather(*(fork(cluster, parent, 2, idempotency_key="k") for _ in range(4)))
    again = await fork(cluster, parent, 2, idempotency_key="k")
    assert all(one.branches == again.branches for one in many)
    assert len(await listed(cluster)) == 3
    assert cluster.faults.calls.count("e1.ForkWorld") == 1
    for facts in ({"count": 1}, {"count": 3}, {"same_noise": True}):
        with pytest.raises(Conflict) as caught:
            await fork(cluster, parent, **{"count": 2, "idempotency_key": "k", **facts})
        assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"
    # A client's own key for an open is another one.
    assert (await cluster.open(key="k")).session.session_id not in {
        one.session_id for one in again.branches
    }


async def test_a_client_that_leaves_leaves_no_half(cluster: Cluster) -> None:
    parent = await cluster.session()
    gate = cluster.faults.hold("e1.ForkWorld")
    forking = asyncio.ensure_future(fork(cluster, parent, idempotency_key="k"))
    await cluster.faults.reach("e1.ForkWorld")
    assert {one.state for name, one in (await listed(cluster)).items() if name != parent} == {
        "opening"
    }
    forking.cancel()
    await asyncio.gather(forking, return_exceptions=True)
    gate.set()
    answer = await fork(cluster, parent, idempotency_key="k")
    assert [one.state for one in answer.branches] == ["live", "live"]
    assert len(await listed(cluster)) == 3


async def test_placement_dies_in_mid_fork(cluster: Cluster) -> None:
    """Nobody knows the branches' names: the next process undoes them, and the key forks anew."""
    parent = await cluster.session()
    gate = cluster.faults.hold("e1.ForkWorld")
    forking = asyncio.ensure_future(fork(cluster, parent, idempotency_key="k"))
    await cluster.faults.reach("e1.ForkWorld")
    await cluster.crash_placement()
    await asyncio.gather(forking, return_exceptions=True)
    gate.set()
    await cluster.start_placement()
    for name in cluster.movers:
        await cluster.register_node(name)
    for name in cluster.engines:
        await cluster.register_engine(name)
    async with asyncio.timeout(60):
        while len(await listed(cluster)) > 1:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    answer = await fork(cluster, parent, idempotency_key="k")
    assert {one.forked_from.branch for one in answer.branches} == {2, 3}, "none is used twice"


@pytest.mark.parametrize("table", ["branches_made", "insert_branches"])
async def test_a_fork_that_the_directory_does_not_take_down_is_undone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """The branches are on record as opening, and who made them can do nothing more."""
    parent = await cluster.session()
    real, close_one = getattr(branch_table, table), session_table.set_state
    refusals = iter(range(2))

    def refused(*arguments: Any) -> Any:
        if table == "insert_branches":
            real(*arguments)  # it is on the disk, and nobody was told so
        raise sqlite3.OperationalError("database or disk is full")

    def refused_at_first(*arguments: Any) -> Any:
        if next(refusals, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        return close_one(*arguments)

    monkeypatch.setattr(branch_table, table, refused)
    monkeypatch.setattr(session_table, "set_state", refused_at_first)
    with pytest.raises(InvariantBroken):
        await fork(cluster, parent, idempotency_key="k")
    monkeypatch.setattr(branch_table, table, real)
    assert {one.state for name, one in (await listed(cluster)).items() if name != parent} == {
        "opening"
    }
    async with asyncio.timeout(60):
        while len(await listed(cluster)) > 1:
            await look_for_forsaken(cluster)
    assert list(cluster.engines["e1"].worlds) == [parent]
    # Its slots are nobody's from now on, as those of any fork that was undone.
    answer = await fork(cluster, parent, 1, idempotency_key="k")
    assert [one.state for one in answer.branches] == ["live"]


async def test_a_fork_that_takes_long_is_not_undone(cluster: Cluster) -> None:
    parent = await cluster.session()
    gate = cluster.faults.hold("e1.ForkWorld")
    forking = asyncio.ensure_future(fork(cluster, parent))
    await cluster.faults.reach("e1.ForkWorld")
    for _ in range(20):
        await look_for_forsaken(cluster)
    assert "e1.CloseWorld" not in cluster.faults.calls
    gate.set()
    assert [one.state for one in (await forking).branches] == ["live", "live"]


async def look_for_forsaken(cluster: Cluster) -> None:
    """Twice: once does not tell. Then what was begun goes on."""
    assert cluster.placement is not None
    for _ in range(2):
        await cluster.placement.sessions.reap()
    await asyncio.sleep(0)


async def test_the_engine_dies_in_mid_fork(cluster: Cluster) -> None:
    parent = await cluster.session()
    gate = cluster.faults.hold("e1.ForkWorld")
    forking = asyncio.ensure_future(fork(cluster, parent))
    await cluster.faults.reach("e1.ForkWorld")
    await cluster.kill("e1")
    gate.set()
    with pytest.raises(WorldlineError):
        await forking
    assert list(await listed(cluster)) == [parent]


@pytest.mark.parametrize("state", ["moving", "closed"])
async def test_a_parent_that_does_not_live_is_named(cluster: Cluster, state: str) -> None:
    parent = await cluster.session()
    if state == "moving":
        await cluster.admit(parent)
    else:
        await close(cluster, parent)
    with pytest.raises(Conflict) as caught:
        await fork(cluster, parent)
    expected = {"moving": "MOVE_IN_PROGRESS", "closed": "SESSION_CLOSED"}[state]
    assert (caught.value.reason, caught.value.field) == (expected, "session_id")
    assert "e1.ForkWorld" not in cluster.faults.calls


async def test_a_move_that_begins_while_admission_thinks(cluster: Cluster) -> None:
    parent = await cluster.session()
    gate = cluster.faults.hold("AdmitSession")
    forking = asyncio.ensure_future(fork(cluster, parent))
    await cluster.faults.reach("AdmitSession")
    await cluster.move(parent)
    gate.set()
    with pytest.raises(Conflict) as caught:
        await forking
    assert caught.value.reason == "PARENT_GONE"
    assert list(await listed(cluster)) == [parent]
    cluster.check_at(parent, "e2")


async def test_bad_forks_name_the_field(cluster: Cluster) -> None:
    parent = await cluster.session()
    bad = contract_to_proto(contract())
    bad.horizon_ms = -1
    for facts, field in (
        ({"count": 0}, "count"),
        ({"count": 65}, "count"),
        ({"contract": bad}, "contract.horizon_ms"),
        ({"idempotency_key": "a b"}, "idempotency_key"),
        ({"first_branch": 2**32 - 1}, "first_branch"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await fork(cluster, parent, **{"count": 2, **facts})
        assert caught.value.field == field
    with pytest.raises(NotFound):
        await fork(cluster, "nobody")
    with pytest.raises(InvalidInput) as caught:
        await fork(cluster, "")
    assert caught.value.field == "session_id"
