"""Moves end to end through placement, with in-test peers over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.placement import node_table
from services.placement.probe import LARGE_COUNT, SMALL_COUNT
from tests.unit.placement.cluster import SHORT, Cluster, running_cluster
from tests.unit.placement.faults import DIGESTS, FLIPPED
from tests.unit.placement.makers import OTHER_TORCH, contract
from worldline.contract import DeterminismTier
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    DeadlineExceeded,
    IntegrityError,
    InvalidInput,
    NotFound,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def test_a_move_there_and_back(cluster: Cluster) -> None:
    session_id = await cluster.session()
    events = [one async for one in cluster.watch_move(session_id)]
    phases = [one.progress.phase for one in events[:-1]]
    assert list(dict.fromkeys(phases)) == list(range(1, 10)), "every phase once, in order"
    assert any(one.progress.sent_bytes == 1024 for one in events[:-1])
    record = events[-1].move
    assert record.phase == move_pb2.MOVE_PHASE_DONE
    assert record.verdict.admitted
    assert record.source_digest == record.target_digest == DIGESTS.whole
    assert {one.name for one in record.timings} == {
        "admit", "reserve", "arm", "freeze", "push", "verify", "attach", "commit", "thaw",
    }  # fmt: skip
    assert record.frozen_ms > 0
    assert record.push_stats.wire_bytes == 2048
    cluster.check_at(session_id, "e2")
    session = await cluster.resolve(session_id)
    assert (session.engine_id, session.epoch, session.state) == ("e2", 2, "live")
    assert cluster.engines["e1"].moved_to[session_id] == cluster.addresses["e2"]
    assert await cluster.renew_engine("e1") == {}
    assert await cluster.renew_engine("e2") == {session_id: 2}

    assert cluster.placement is not None
    (path,) = await cluster.placement.directory.do(node_table.latest_paths, 10)
    assert (path.source_node_id, path.rate_bytes_per_s, path.samples) == ("n1", 2048e3, 1)
    assert path.setup_ms == pytest.approx(record.frozen_ms - 1.0)

    back = await cluster.move(session_id, "")
    assert back.phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_at(session_id, "e1")
    assert (await cluster.resolve(session_id)).epoch == 3


async def test_the_order_of_calls_is_the_protocols(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.calls.clear()
    await cluster.move(session_id)
    calls = [one for one in cluster.faults.calls if one != "FinishMove"]
    together = [{"n2.Reserve", "e2.WarmWorld", "n1.Arm"}, {"n2.Verify", "e2.Attach"}]
    assert [set(calls[1:4]), set(calls[6:8])] == together
    del calls[6:8], calls[1:4]
    assert calls == [
        "AdmitMove", "e1.Freeze", "n1.Push", "e2.Activate", "e1.Detach", "n1.Release",
    ]  # fmt: skip
    (finish,) = cluster.admission.finished
    assert finish.committed
    assert finish.frozen_ms > 0
    assert finish.push_stats.wire_bytes == 2048


STEPS = {
    "AdmitMove": Unavailable("away"),
    "n2.Reserve": Unavailable("away"),
    "e2.WarmWorld": Conflict("no weights"),
    "n1.Arm": TransferFailed("no lane"),
    "e1.Freeze": Conflict("not now"),
    "n1.Push": TransferFailed("peer gone"),
    "n2.Verify": TransferFailed("poisoned"),
    "e2.Attach": Unavailable("away"),
}


@pytest.mark.parametrize("reply_lost", [False, True])
@pytest.mark.parametrize("method", STEPS)
async def test_a_failure_at_any_step_rolls_back(
    cluster: Cluster, method: str, reply_lost: bool
) -> None:
    session_id = await cluster.session()
    inject = cluster.faults.lose_reply if reply_lost else cluster.faults.fail
    inject(method, *[STEPS[method]] * 3)
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_ABORTED
    assert record.failure.reason == STEPS[method].reason
    cluster.check_at(session_id, "e1")
    session = await cluster.resolve(session_id)
    assert (session.engine_id, session.epoch, session.state) == ("e1", 1, "live")
    # And nothing stands in the way of the next one.
    cluster.faults.errors.clear()
    cluster.faults.lost_replies.clear()
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_at(session_id, "e2")


async def test_an_early_verification_that_failed_is_made_anew(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("n2.Verify", Conflict("not yet"))
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    assert cluster.faults.calls.count("n2.Verify") == 2
    cluster.check_at(session_id, "e2")


@pytest.mark.parametrize(
    "method",
    [
        "e2.Attach",
        "e2.Activate",
        "e1.Detach",
        "n1.Release",
        "e1.Freeze",
        "n2.Verify",
        "AdmitMove",
    ],
)
async def test_a_lost_reply_is_asked_again(cluster: Cluster, method: str) -> None:
    session_id = await cluster.session()
    cluster.faults.lose_reply(method, DeadlineExceeded("the reply is lost"))
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    assert cluster.faults.calls.count(method) >= 2
    cluster.check_at(session_id, "e2")


async def test_a_connection_to_the_target_that_broke_since_costs_no_move(cluster: Cluster) -> None:
    """Nobody has asked a warm engine anything since its last move: attach is the first to know."""
    session_id = await cluster.session()
    for node_id in ("n2", "n1"):
        await cluster.move(session_id, node_id)
    cluster.faults.fail("e2.Attach", Unavailable("Connection reset by peer"))
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_at(session_id, "e2")


@pytest.mark.parametrize("method", ["e1.Thaw", "n2.Release", "e2.Detach"])
async def test_a_lost_reply_of_a_rollback_is_asked_again(cluster: Cluster, method: str) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("e2.Attach", Conflict("no"))
    cluster.faults.lose_reply(method, DeadlineExceeded("the reply is lost"))
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_ABORTED
    assert cluster.faults.calls.count(method) >= 2
    cluster.check_at(session_id, "e1")


async def test_a_step_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, deadlines=SHORT) as cluster:
        session_id = await cluster.session()
        cluster.faults.hold("e2.Attach")
        record = await cluster.move(session_id)
        assert (record.phase, record.failure.reason) == (
            move_pb2.MOVE_PHASE_ABORTED,
            "DEADLINE_EXCEEDED",
        )
        cluster.check_at(session_id, "e1")


async def test_bits_that_differ_in_flight(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.movers["n1"].landed = FLIPPED
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_ABORTED
    assert (record.failure.reason, record.failure.leaf) == ("DIGEST_MISMATCH", "kv")
    assert record.failure.granule == 1
    cluster.check_at(session_id, "e1")


async def test_bits_that_differ_at_rest(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.movers["n2"].digests = FLIPPED
    record = await cluster.move(session_id)
    assert (record.failure.reason, record.failure.granule) == ("DIGEST_MISMATCH", 1)
    cluster.check_at(session_id, "e1")


async def test_the_client_goes_away_and_the_move_ends(cluster: Cluster) -> None:
    session_id = await cluster.session()
    gate = cluster.faults.hold("n1.Push")
    request = placement_pb2.MoveSessionRequest(session_id=session_id, target_node_id="n2")
    stream = cluster.stub.MoveSession(request, timeout=60)
    await stream.read()
    await cluster.faults.reach("n1.Push")
    stream.cancel()
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    gate.set()
    record = await cluster.ended(move.move_id)
    assert record.phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_at(session_id, "e2")


async def test_rollback_in_mid_push_cancels_the_push(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.hold("n1.Push")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n1.Push")
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    answer = await cluster.verb("Rollback", move.move_id)
    assert answer.manifest.session_id == session_id
    record = await moving
    assert record.failure.reason == "CLIENT_ROLLBACK"
    async with asyncio.timeout(60):
        await cluster.movers["n1"].push_cancelled.wait()
    cluster.check_at(session_id, "e1")


async def test_an_unmeasured_path_is_measured_first(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.measured = False
    assert (await cluster.move(session_id)).phase == move_pb2.MOVE_PHASE_DONE
    # 1 MiB is all that fits into these slots.
    assert cluster.faults.calls.count("n1.Probe") == SMALL_COUNT + LARGE_COUNT
    cluster.check_at(session_id, "e2")
    cluster.admission.measured = True
    await cluster.move(session_id, "n1")
    assert cluster.faults.calls.count("n2.Probe") == 0


async def test_a_probe_that_fails_leaves_nothing(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.measured = False
    cluster.faults.fail("n1.Probe", TransferFailed("broken"))
    record = await cluster.move(session_id)
    assert (record.phase, record.failure.reason) == (
        move_pb2.MOVE_PHASE_ABORTED,
        "TRANSFER_FAILED",
    )
    cluster.check_at(session_id, "e1")


async def test_a_reject_is_an_answer(cluster: Cluster) -> None:
    session_id = await cluster.session()
    no = Verdict.reject(RejectReason.HORIZON_TOO_SHORT, "too slow", {"l_star_ms": 900.0})
    cluster.admission.verdicts = [no]
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert record.verdict.reason == RejectReason.HORIZON_TOO_SHORT
    assert record.verdict.numbers["l_star_ms"] == 900.0
    assert not record.HasField("failure")
    assert (await cluster.record(record.move_id)).phase == move_pb2.MOVE_PHASE_REJECTED
    cluster.check_at(session_id, "e1")


async def test_a_target_that_fills_up_meanwhile_is_a_reject(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("n2.Reserve", CapacityExhausted("full", retry_after_ms=70))
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert record.verdict.reason == RejectReason.TARGET_FULL
    assert record.verdict.retry_after_ms == 70
    assert "e1.Freeze" not in cluster.faults.calls
    cluster.check_at(session_id, "e1")


async def test_a_full_target_is_rejected_with_a_record(cluster: Cluster) -> None:
    session_id = await cluster.session()
    for _ in range(4):
        await cluster.session("n2")
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_REJECTED
    assert record.verdict.reason == RejectReason.TARGET_FULL
    assert (await cluster.resolve(session_id)).state == "live"


async def test_another_fingerprint_is_rejected_or_drops_the_tier(cluster: Cluster) -> None:
    cluster.engines["e2"].fingerprint = OTHER_TORCH
    await cluster.register_engine("e2", "i2")
    strict = await cluster.session()
    record = await cluster.move(strict)
    assert record.verdict.reason == RejectReason.FINGERPRINT_MISMATCH
    assert "torch" in record.verdict.explanation
    opened = await cluster.open(of=contract(tier_drop_allowed=True))
    lenient = opened.session.session_id
    assert (await cluster.move(lenient)).phase == move_pb2.MOVE_PHASE_DONE
    after = await cluster.resolve(lenient)
    assert after.contract.determinism_tier == DeterminismTier.T1_SCHEDULE_STABLE
    assert not after.contract.tier_drop_allowed
    assert cluster.engines["e2"].tiers[lenient] == DeterminismTier.T1_SCHEDULE_STABLE


@pytest.mark.parametrize(
    ("session", "target", "error", "reason", "field"),
    [
        ("nobody", "n2", NotFound, "SESSION_UNKNOWN", "session_id"),
        ("", "n2", InvalidInput, "INVALID_INPUT", "session_id"),
        (None, "n9", NotFound, "NODE_UNKNOWN", "target_node_id"),
        (None, "n1", InvalidInput, "MOVE_TO_ITSELF", "target_node_id"),
    ],
)
async def test_bad_input_is_a_typed_error_and_loses_nothing(
    cluster: Cluster,
    session: str | None,
    target: str,
    error: type[WorldlineError],
    reason: str,
    field: str,
) -> None:
    session_id = await cluster.session()
    for ask in (cluster.move, cluster.admit):
        with pytest.raises(error) as caught:
            await ask(session_id if session is None else session, target)
        assert (caught.value.reason, caught.value.field) == (reason, field)
    cluster.check_at(session_id, "e1")


async def test_during_another_move(cluster: Cluster) -> None:
    session_id = await cluster.session()
    admitted = await cluster.admit(session_id)
    for ask in (cluster.move, cluster.admit):
        with pytest.raises(Conflict) as caught:
            await ask(session_id)
        assert caught.value.reason == "MOVE_IN_PROGRESS"
    with pytest.raises(Conflict) as caught:
        await cluster.ask("CloseSession", placement_pb2.CloseSessionRequest(session_id=session_id))
    assert caught.value.reason == "MOVE_IN_PROGRESS"
    await cluster.verb("Rollback", admitted.move_id)
    cluster.check_at(session_id, "e1")


async def test_two_moves_at_once_and_one_wins(cluster: Cluster) -> None:
    session_id = await cluster.session()
    both = await asyncio.gather(
        cluster.move(session_id), cluster.move(session_id), return_exceptions=True
    )
    refused = [one for one in both if isinstance(one, Conflict)]
    assert len(refused) == 1
    cluster.check_at(session_id, "e2")


async def test_an_idempotency_key_answers_with_the_same_move(cluster: Cluster) -> None:
    session_id = await cluster.session()
    first = await cluster.move(session_id, key="k")
    again = await cluster.move(session_id, key="k")
    assert again.move_id == first.move_id
    assert cluster.faults.calls.count("e1.Freeze") == 1
    other = await cluster.session()
    with pytest.raises(Conflict) as caught:
        await cluster.move(other, key="k")
    assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"


async def test_abort_retry_abort_fifty_times(cluster: Cluster) -> None:
    session_id = await cluster.session()
    methods = [one for one in STEPS if one not in ("AdmitMove", "n2.Verify", "e1.Freeze")]
    for turn in range(50):
        method = methods[turn % len(methods)]
        cluster.faults.fail(method, TransferFailed("broken"))
        record = await cluster.move(session_id)
        if method in ("e2.WarmWorld", "e2.Attach"):  # idempotent: asked again, and then it works
            assert record.phase == move_pb2.MOVE_PHASE_DONE
            await cluster.move(session_id, "n1")
        else:
            assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        cluster.faults.errors.clear()
    cluster.check_at(session_id, "e1")
    described = await cluster.ask("DescribePlacement", placement_pb2.DescribePlacementRequest())
    assert sum(described.moves_by_outcome.values()) == 70
    assert described.moves_by_outcome["aborted:TRANSFER_FAILED"] == 30
    assert described.census.counts["open_moves"] == 0
    assert described.census.counts["owned_tasks"] == 1  # the lease reaper


async def test_the_error_of_a_differing_commit_is_raised_by_the_verbs(cluster: Cluster) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    await cluster.migrate(move_id)
    cluster.movers["n2"].digests = FLIPPED
    checked = await cluster.verb("Verify", move_id)
    assert not checked.equal
    assert (checked.failure.leaf, checked.failure.granule) == ("kv", 1)
    assert (await cluster.record(move_id)).phase == move_pb2.MOVE_PHASE_STAGED
    with pytest.raises(IntegrityError) as caught:
        await cluster.verb("Commit", move_id)
    assert (caught.value.leaf, caught.value.granule) == ("kv", 1)
    cluster.check_at(session_id, "e1")


async def test_a_push_that_ends_while_the_target_reserves_freezes_nothing(cluster: Cluster) -> None:
    session_id = await cluster.session()
    gate = cluster.faults.hold("n2.Reserve")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("n2.Reserve")
    cluster.movers["n1"].ticket_ran_out.set()
    assert cluster.placement is not None
    (task,) = cluster.placement.runtime._moves.tasks()
    async with asyncio.timeout(60):
        while (push := task.context.push) is None or not push._stream.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    gate.set()
    record = await moving
    assert (record.phase, record.failure.reason) == (
        move_pb2.MOVE_PHASE_ABORTED,
        "TICKET_EXPIRED",
    )
    assert "e1.Freeze" not in cluster.faults.calls
    cluster.check_at(session_id, "e1")


async def test_nobody_holds_a_wire_while_the_target_warms(cluster: Cluster) -> None:
    session_id = await cluster.session()
    gate = cluster.faults.hold("e2.WarmWorld")
    moving = asyncio.ensure_future(cluster.move(session_id))
    await cluster.faults.reach("e2.WarmWorld")
    assert "n1.Arm" not in cluster.faults.calls
    gate.set()
    assert (await moving).phase == move_pb2.MOVE_PHASE_DONE
    calls = cluster.faults.calls
    assert calls.index("e2.WarmWorld") < calls.index("n1.Arm") < calls.index("e1.Freeze")


async def test_a_process_is_asked_once_to_warm_a_preset(cluster: Cluster) -> None:
    session_id = await cluster.session()
    for target in ("n2", "n1", "n2", "n1"):
        assert (await cluster.move(session_id, target)).phase == move_pb2.MOVE_PHASE_DONE
    assert cluster.faults.calls.count("e2.WarmWorld") == 1
    await cluster.register_engine("e2", "i2")
    assert (await cluster.move(session_id, "n2")).phase == move_pb2.MOVE_PHASE_DONE
    assert cluster.faults.calls.count("e2.WarmWorld") == 2, "another process under its name"
