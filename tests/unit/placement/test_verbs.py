"""The verbs of the paper's Table 1, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.placement import events as ev
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.faults import DIGESTS, FLIPPED
from worldline.errors import Conflict, IntegrityError, NotFound, TransferFailed, Unavailable
from worldline.v1 import move_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def test_all_of_them(cluster: Cluster) -> None:
    session_id = await cluster.session()
    registered = await cluster.ask(
        "RegisterState", placement_pb2.RegisterStateRequest(session_id=session_id)
    )
    assert registered.manifest.digests.whole == DIGESTS.whole
    admitted = await cluster.admit(session_id, "")
    assert admitted.verdict.admitted
    assert admitted.verdict.numbers["l_star_ms"] == 1.0
    move_id = admitted.move_id
    assert cluster.running(session_id) == ["e1"], "admission freezes nothing"
    *progress, last = await cluster.migrate(move_id)
    assert [one.progress.phase for one in progress][-1] == move_pb2.MOVE_PHASE_STAGED
    assert last.manifest.digests.whole == DIGESTS.whole
    assert last.manifest.session_id == session_id
    assert (await cluster.verb("Verify", move_id)).equal
    assert (await cluster.record(move_id)).phase == move_pb2.MOVE_PHASE_VERIFIED
    committed = await cluster.verb("Commit", move_id)
    assert (committed.session.engine_id, committed.session.epoch) == ("e2", 2)
    assert committed.manifest.digests.whole == DIGESTS.whole
    cluster.check_at(session_id, "e2")
    assert cluster.faults.calls.count("n2.Verify") == 2, "commit re-verifies"


async def test_each_verb_may_be_asked_again(cluster: Cluster) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    await cluster.migrate(move_id)
    again = await cluster.migrate(move_id)
    assert again[-1].manifest.digests.whole == DIGESTS.whole
    assert cluster.faults.calls.count("n1.Push") == 1
    await cluster.verb("Verify", move_id)
    await cluster.verb("Verify", move_id)
    await cluster.verb("Commit", move_id)
    repeated = await cluster.verb("Commit", move_id)
    assert (repeated.session.engine_id, repeated.session.epoch) == ("e2", 2)
    cluster.check_at(session_id, "e2")


@pytest.mark.parametrize("staged", [False, True])
async def test_rollback_keeps_the_source(cluster: Cluster, staged: bool) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    if staged:
        await cluster.migrate(move_id)
    for _ in range(2):
        answer = await cluster.verb("Rollback", move_id)
        assert answer.manifest.session_id == session_id
    record = await cluster.record(move_id)
    assert (record.phase, record.failure.reason) == (
        move_pb2.MOVE_PHASE_ABORTED,
        "CLIENT_ROLLBACK",
    )
    cluster.check_at(session_id, "e1")
    for verb in ("Verify", "Commit"):
        with pytest.raises(Conflict):
            await cluster.verb(verb, move_id)
    with pytest.raises(Conflict):
        await cluster.migrate(move_id)


async def test_a_committed_move_is_not_rolled_back(cluster: Cluster) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.move(session_id)).move_id
    with pytest.raises(Conflict) as caught:
        await cluster.verb("Rollback", move_id)
    assert caught.value.reason == "MOVE_COMMITTED"
    cluster.check_at(session_id, "e2")


async def test_a_bit_that_flips_after_verify_is_caught_by_commit(cluster: Cluster) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    await cluster.migrate(move_id)
    assert (await cluster.verb("Verify", move_id)).equal
    cluster.movers["n2"].digests = FLIPPED
    with pytest.raises(IntegrityError) as caught:
        await cluster.verb("Commit", move_id)
    assert (caught.value.leaf, caught.value.granule) == ("kv", 1)
    cluster.check_at(session_id, "e1")


async def test_verbs_out_of_turn(cluster: Cluster) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    for verb in ("Verify", "Commit"):
        with pytest.raises(Conflict) as caught:
            await cluster.verb(verb, move_id)
        assert caught.value.reason == "MOVE_NOT_STAGED"
    for verb in ("Verify", "Commit", "Rollback"):
        with pytest.raises(NotFound):
            await cluster.verb(verb, "nothing")
    with pytest.raises(NotFound):
        await cluster.migrate("nothing")
    await cluster.migrate(move_id)
    await cluster.verb("Commit", move_id)
    cluster.check_at(session_id, "e2")


async def test_a_rejected_move_has_a_record_and_no_next_verb(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.admission.verdicts = [Verdict.reject(RejectReason.SENDER_BUSY, "busy", {}, 50)]
    answer = await cluster.admit(session_id)
    assert not answer.verdict.admitted
    assert answer.verdict.retry_after_ms == 50
    assert (await cluster.record(answer.move_id)).phase == move_pb2.MOVE_PHASE_REJECTED
    with pytest.raises(Conflict) as caught:
        await cluster.migrate(answer.move_id)
    assert caught.value.reason == "MOVE_REJECTED"
    cluster.check_at(session_id, "e1")


async def test_a_failed_migrate_raises_why(cluster: Cluster) -> None:
    """A Conflict, though the wire raised TransferFailed: that would make clients ask again."""
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    cluster.faults.fail("n1.Push", TransferFailed("the wire broke"))
    with pytest.raises(Conflict, match="the wire broke") as caught:
        await cluster.migrate(move_id)
    assert caught.value.reason == "TRANSFER_FAILED"
    with pytest.raises(Conflict, match="the wire broke"):
        await cluster.verb("Verify", move_id)
    cluster.check_at(session_id, "e1")


async def test_an_admission_that_is_away_is_an_error_not_a_reject(cluster: Cluster) -> None:
    session_id = await cluster.session()
    cluster.faults.fail("AdmitMove", *[Unavailable("away")] * 3)
    with pytest.raises(Conflict) as caught:
        await cluster.admit(session_id)
    assert caught.value.reason == "UNAVAILABLE"
    cluster.check_at(session_id, "e1")


async def test_a_staged_move_without_a_next_verb_is_rolled_back(cluster: Cluster) -> None:
    session_id = await cluster.session()
    move_id = (await cluster.admit(session_id)).move_id
    await cluster.migrate(move_id)
    assert cluster.placement is not None
    task = cluster.placement.runtime.move_task(move_id)
    assert task is not None
    # The verb's time is over now rather than in twenty seconds.
    task.entry = task.entry.with_move(replace(task.entry.move, deadline_s=0.0))
    task.post(ev.DeadlinePassed())
    record = await cluster.ended(move_id)
    assert (record.phase, record.failure.reason) == (move_pb2.MOVE_PHASE_ABORTED, "NO_VERB")
    cluster.check_at(session_id, "e1")


async def test_moves_are_listed_newest_first(cluster: Cluster) -> None:
    session_id = await cluster.session()
    first = await cluster.move(session_id)
    second = await cluster.move(session_id, "n1")
    listed = await cluster.ask("ListMoves", placement_pb2.ListMovesRequest(session_id=session_id))
    assert [one.move_id for one in listed.moves] == [second.move_id, first.move_id]
    shorter = await cluster.ask("ListMoves", placement_pb2.ListMovesRequest(limit=1))
    assert [one.move_id for one in shorter.moves] == [second.move_id]
