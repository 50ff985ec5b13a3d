from __future__ import annotations

import asyncio

import pytest

from tests.unit.sdk.fakes import Stage
from tests.unit.sdk.test_play import check, script
from worldline.errors import CapacityExhausted, Conflict, InvalidInput, Unavailable
from worldline.park import SuspensionPhase, SuspensionVerb
from worldline.sdk import Block, Client, ParkKind
from worldline.sdk.rejected import Rejected
from worldline.sdk.session import Session
from worldline.sdk.suspension import park_kind, suspension_from_proto
from worldline.v1 import move_pb2, park_pb2

RECORD = park_pb2.SuspensionRecord(
    suspension_id="suspend-1",
    session_id="session-1",
    verb=park_pb2.SUSPENSION_VERB_SUSPEND,
    phase=park_pb2.SUSPENSION_PHASE_DONE,
    kind=park_pb2.PARK_KIND_FILE,
    epoch=3,
    timings=[
        move_pb2.PhaseTiming(name="freeze", duration_ms=1.5),
        move_pb2.PhaseTiming(name="park", duration_ms=30),
    ],
    stats=park_pb2.ParkStats(copied_bytes=7, copy_ms=29, verify_ms=0.5, direct_io=True),
    digest=2**64 - 1,
    trace_id="t",
)


async def test_suspended_and_resumed(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    stage.placement.suspension = RECORD
    record = await session.suspend(ParkKind.FILE)
    assert record == suspension_from_proto(RECORD)
    assert record is not None
    assert (record.verb, record.phase) == (SuspensionVerb.SUSPEND, SuspensionPhase.DONE)
    assert list(record.timings_ms) == ["freeze", "park"]
    assert record.total_ms == 31.5
    assert record.digest == 2**64 - 1
    assert (session.info.state, session.info.parked) == ("suspended", ParkKind.FILE)
    name, request = stage.placement.calls[-1]
    assert name == "SuspendSession"
    assert request.kind == park_pb2.PARK_KIND_FILE
    await session.resume()
    assert (session.info.state, session.info.parked, session.epoch) == ("live", None, 2)
    check([block async for block in session.play(script(3))], stage, 3)


async def test_nothing_to_do_is_no_record(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    assert await session.suspend() is None
    assert await session.resume() is None


async def test_a_lost_answer_is_asked_for_under_the_same_key(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    stage.placement.replies_lost = 2
    await session.suspend()
    keys = [
        request.idempotency_key
        for name, request in stage.placement.calls
        if name == "SuspendSession"
    ]
    assert len(keys) == 3
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    "error", [Unavailable("its node is silent", reason="NODE_SILENT"), CapacityExhausted("full")]
)
async def test_an_answer_is_an_answer(stage: Stage, client: Client, error: Exception) -> None:
    """Placement has said no: asking again would freeze the world again for the same answer."""
    session = await client.open("tiny")
    stage.placement.script["SuspendSession"] = [error, error]
    with pytest.raises(type(error)):
        await session.suspend()
    assert [name for name, _ in stage.placement.calls].count("SuspendSession") == 1


async def test_no_room_is_a_reject(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    await session.suspend()
    stage.placement.verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_DEVICE_FULL, explanation="full", retry_after_ms=9
    )
    with pytest.raises(Rejected) as caught:
        await session.resume()
    assert caught.value.reason == "DEVICE_FULL"
    assert caught.value.retry_after_ms == 9


@pytest.mark.parametrize("window", [1, 2, 4, 8])
async def test_a_suspended_play_says_so_and_the_next_one_goes_on(
    stage: Stage, client: Client, window: int
) -> None:
    """No action of the player's source is lost, whatever it had been taken for."""
    stage.world.faults = {3: "suspended"}
    session = await client.open("tiny")
    actions, blocks = script(9), list[Block]()
    with pytest.raises(Conflict) as caught:
        await watch(session, actions, window, blocks)
    assert caught.value.reason == "SESSION_SUSPENDED"
    assert "resume" in caught.value.message
    await session.resume()
    await watch(session, actions, window, blocks)
    check(blocks, stage, 9)


async def watch(session: Session, actions: object, window: int, blocks: list[Block]) -> None:
    async for block in session.play(actions, window=window):  # type: ignore[arg-type]
        blocks.append(block)
        await asyncio.sleep(0.001)


def test_kinds_by_name() -> None:
    assert park_kind("file") is ParkKind.FILE
    with pytest.raises(InvalidInput) as caught:
        park_kind("tape")
    assert caught.value.field == "to"
