from __future__ import annotations

import asyncio

import pytest

from tests.unit.sdk.fakes import Stage
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    TransferFailed,
    Unavailable,
)
from worldline.sdk import Client, MovePhase, Progress, Rejected
from worldline.v1 import move_pb2, placement_pb2


def calls(stage: Stage, name: str) -> list[object]:
    return [request for called, request in stage.placement.calls if called == name]


async def test_open_tells_where(stage: Stage, client: Client) -> None:
    session = await client.open("tiny", seed=3, node="node-0")
    assert session.info.node_id == "node-0"
    assert session.info.world.seed == 3
    request = calls(stage, "OpenSession")[0]
    assert (request.world.preset, request.world.seed, request.node_id) == ("tiny", 3, "node-0")  # type: ignore[attr-defined]


async def test_a_reject_raises_with_its_verdict(stage: Stage, client: Client) -> None:
    stage.placement.verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_DEVICE_FULL, explanation="no slot", numbers={"slots": 4}
    )
    with pytest.raises(Rejected) as caught:
        await client.open("tiny")
    assert caught.value.reason == "DEVICE_FULL"
    assert caught.value.verdict.numbers == {"slots": 4.0}


async def test_one_key_over_all_attempts(stage: Stage, client: Client) -> None:
    stage.placement.script["OpenSession"] = [
        Unavailable("down"),
        CapacityExhausted("busy", retry_after_ms=1),
        None,
    ]
    await client.open("tiny")
    assert len({request.idempotency_key for request in calls(stage, "OpenSession")}) == 1  # type: ignore[attr-defined]
    attempts = [metadata["worldline-attempt"] for metadata in stage.placement.metadata]
    assert attempts == ["1", "2", "3"]
    assert len({metadata["worldline-client-id"] for metadata in stage.placement.metadata}) == 1


async def test_other_errors_are_not_retried(stage: Stage, client: Client) -> None:
    stage.placement.script["OpenSession"] = [Conflict("no", field="world")]
    with pytest.raises(Conflict) as caught:
        await client.open("tiny")
    assert caught.value.field == "world"
    assert len(calls(stage, "OpenSession")) == 1


async def test_nobody_there_is_unavailable_within_the_deadline() -> None:
    async with Client("127.0.0.1:1", timeout_s=0.5) as client:
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await client.nodes()


async def test_a_placement_that_never_answered_is_not_waited_for() -> None:
    waited_s: list[float] = []
    async with (
        Client("127.0.0.1:1", connect_patience_s=2.0, on_waiting=waited_s.append) as client,
        asyncio.timeout(60),
    ):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1; is `worldline up` running"):
            await client.open("tiny")  # its own deadline is two minutes
    assert waited_s == sorted(waited_s)
    assert 0 < len(waited_s) < 20


async def test_a_placement_that_answered_may_restart() -> None:
    stage = await Stage.build()
    waited_s: list[float] = []
    async with Client(
        stage.address,
        timeout_s=4.0,
        move_timeout_s=0.3,
        connect_patience_s=0.2,
        on_waiting=waited_s.append,
    ) as client:
        session = await client.open("tiny")
        await stage.close()
        with pytest.raises((Unavailable, DeadlineExceeded), match="placement"):
            await client.nodes()
        assert max(waited_s) > 0.2
        with pytest.raises(Unavailable, match="no placement answers"):
            await session.move("node-1")


async def test_an_unknown_session(stage: Stage, client: Client) -> None:
    with pytest.raises(NotFound) as caught:
        await client.session("nope")
    assert caught.value.field == "session_id"


@pytest.mark.parametrize("seed", [-1, 1 << 64])
async def test_a_seed_out_of_range(client: Client, seed: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        await client.open("tiny", seed=seed)
    assert caught.value.field == "seed"


async def test_closing_after_a_lost_reply(stage: Stage, client: Client) -> None:
    stage.placement.script["CloseSession"] = [Unavailable("lost"), NotFound("gone")]
    session = await client.open("tiny")
    await session.close()
    assert len(calls(stage, "CloseSession")) == 2


MOVING = Conflict("it is moving", reason="MOVE_IN_PROGRESS")


async def test_closing_waits_for_a_move(stage: Stage, client: Client) -> None:
    stage.placement.script["CloseSession"] = [MOVING, MOVING]
    async with await client.open("tiny"):
        pass
    assert len(calls(stage, "CloseSession")) == 3
    assert not calls(stage, "RollbackMigration")


async def test_closing_gives_up_the_sessions_own_staged_move(stage: Stage, client: Client) -> None:
    stage.placement.script["CloseSession"] = [MOVING]
    stage.placement.script["RollbackMigration"] = [NotFound("ended meanwhile")]
    async with await client.open("tiny") as session:
        assert (await session.admit("node-1")).admitted
    assert len(calls(stage, "RollbackMigration")) == 1
    assert len(calls(stage, "CloseSession")) == 2
    assert not session.move_id


async def test_closing_does_not_wait_for_ever(stage: Stage) -> None:
    stage.placement.script["CloseSession"] = [MOVING] * 100
    async with Client(stage.address, move_timeout_s=0.3) as client:
        session = await client.open("tiny")
        # Whichever is nearer when its time is over: the last answer, or no other one.
        with pytest.raises((Conflict, DeadlineExceeded)):
            await session.close()


def _done(phase: int = move_pb2.MOVE_PHASE_DONE) -> move_pb2.MoveRecord:
    return move_pb2.MoveRecord(
        move_id="move-1", session_id="session-1", phase=phase, source_epoch=1
    )


async def test_move_reports_and_answers(stage: Stage, client: Client) -> None:
    stage.placement.move_events = [
        placement_pb2.MoveSessionResponse(
            progress=placement_pb2.MoveProgress(
                phase=move_pb2.MOVE_PHASE_FROZEN, sent_bytes=1, total_bytes=4
            )
        ),
        placement_pb2.MoveSessionResponse(move=_done()),
    ]
    seen: list[Progress] = []
    record = await (await client.open("tiny")).move("node-1", seen.append)
    assert record.committed
    assert seen == [Progress(MovePhase.FROZEN, 1, 4)]


async def test_a_move_says_what_it_saves(stage: Stage, client: Client) -> None:
    stage.placement.move_events = [placement_pb2.MoveSessionResponse(move=_done())]
    session = await client.open("tiny")
    await session.move("node-1")
    await session.move("node-1", saves_ms=300.0)
    await session.admit("node-1", saves_ms=70.0)
    said = [request.saves_ms for request in calls(stage, "MoveSession")]  # type: ignore[attr-defined]
    said += [request.saves_ms for request in calls(stage, "AdmitMigration")]  # type: ignore[attr-defined]
    assert said == [0.0, 300.0, 70.0]
    for verb in (session.move, session.admit):
        with pytest.raises(InvalidInput) as caught:
            await verb("node-1", saves_ms=-1.0)
        assert caught.value.field == "saves_ms"


async def test_a_broken_move_stream_is_joined_with_the_same_key(
    stage: Stage, client: Client
) -> None:
    stage.placement.script["MoveSession"] = [Unavailable("broken"), None]
    stage.placement.move_events = [placement_pb2.MoveSessionResponse(move=_done())]
    session = await client.open("tiny")
    assert (await session.move("node-1")).committed
    keys = {request.idempotency_key for request in calls(stage, "MoveSession")}  # type: ignore[attr-defined]
    assert len(calls(stage, "MoveSession")) == 2
    assert len(keys) == 1


async def test_a_move_stream_without_an_answer_is_no_success(stage: Stage) -> None:
    async with Client(stage.address, move_timeout_s=0.3) as client:
        session = await client.open("tiny")
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await session.move("node-1")


async def test_verbs_need_an_admitted_move(client: Client) -> None:
    session = await client.open("tiny")
    for verb in (session.migrate, session.verify, session.commit, session.rollback):
        with pytest.raises(Conflict) as caught:
            await verb()
        assert caught.value.reason == "NO_MOVE"


async def test_a_rejected_admit_is_an_answer(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    stage.placement.verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_RECEIVER_BUSY, explanation="busy", retry_after_ms=50
    )
    verdict = await session.admit("node-1")
    assert (verdict.admitted, verdict.label, verdict.retry_after_ms) == (False, "RECEIVER_BUSY", 50)
    assert session.move_id == "move-1"


async def test_a_mismatch_names_leaf_and_granule(client: Client) -> None:
    session = await client.open("tiny")
    assert (await session.admit("node-1")).admitted
    assert not await session.verify()
    assert session.difference is not None
    assert (session.difference.leaf, session.difference.granule) == ("k", 7)


async def test_a_commit_that_failed_is_not_repeated(stage: Stage, client: Client) -> None:
    """The reply is lost; the directory says ABORTED, after a while: that is the outcome."""
    session = await client.open("tiny")
    await session.admit("node-1")
    stage.placement.script["CommitMigration"] = [Unavailable("reply lost")]
    aborted = _done(move_pb2.MOVE_PHASE_ABORTED)
    aborted.failure.reason = "PEER_GONE"
    aborted.failure.message = "the target's engine ended"
    stage.placement.records = [
        _done(move_pb2.MOVE_PHASE_ATTACHED),
        _done(move_pb2.MOVE_PHASE_ROLLING_BACK),
        aborted,
    ]
    with pytest.raises(TransferFailed) as caught:
        await session.commit()
    assert caught.value.reason == "PEER_GONE"
    assert len(calls(stage, "CommitMigration")) == 1
    assert len(calls(stage, "GetMove")) == 3


async def test_a_move_is_told_of_as_it_is_now(stage: Stage, client: Client) -> None:
    stage.placement.records = [_done(move_pb2.MOVE_PHASE_ATTACHED)]
    record = await client.move_record("move-1")
    assert (record.phase, record.outcome) == (MovePhase.ATTACHED, "running")
    with pytest.raises(InvalidInput):
        await client.move_record("")


async def test_an_undecided_commit_is_unknown(stage: Stage) -> None:
    async with Client(stage.address, move_timeout_s=0.4) as client:
        session = await client.open("tiny")
        await session.admit("node-1")
        stage.placement.script["CommitMigration"] = [Unavailable("reply lost")]
        stage.placement.records = [_done(move_pb2.MOVE_PHASE_ATTACHED)]
        with pytest.raises(DeadlineExceeded):
            await session.commit()
        assert session.move_id == "move-1"
