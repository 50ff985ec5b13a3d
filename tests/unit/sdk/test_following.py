"""Following a move that somebody else has begun, and what records of moves under way say."""

from __future__ import annotations

import pytest

from tests.unit.sdk.fakes import Stage
from worldline.errors import NotFound, Unavailable
from worldline.sdk import Client, MovePhase, Progress
from worldline.sdk.move_record import move_from_proto
from worldline.v1 import move_pb2, placement_pb2


def events() -> list[placement_pb2.MoveSessionResponse]:
    known = placement_pb2.MoveProgress(phase=move_pb2.MOVE_PHASE_FROZEN, step="push", step_ms=2.0)
    newer = placement_pb2.MoveProgress(phase=77)
    record = move_pb2.MoveRecord(move_id="move-1", phase=move_pb2.MOVE_PHASE_DONE)
    return [
        placement_pb2.MoveSessionResponse(progress=known),
        placement_pb2.MoveSessionResponse(progress=newer),
        placement_pb2.MoveSessionResponse(move=record),
    ]


async def test_a_stream_that_breaks_is_joined_again(stage: Stage) -> None:
    stage.placement.move_events = events()
    stage.placement.script["WatchMove"] = [Unavailable("restarting"), None]
    heard: list[Progress] = []
    async with Client(stage.address) as client:
        record = await client.watch_move("move-1", heard.append)
    assert record.committed
    assert [(one.phase, one.step) for one in heard] == [(MovePhase.FROZEN, "push")], (
        "a phase that is unknown here costs nobody the record"
    )
    asked = [request for name, request in stage.placement.calls if name == "WatchMove"]
    assert [one.move_id for one in asked] == ["move-1", "move-1"]


async def test_an_unknown_move_is_an_answer(stage: Stage) -> None:
    stage.placement.script["WatchMove"] = [NotFound("no such move", field="move_id")]
    async with Client(stage.address) as client:
        with pytest.raises(NotFound):
            await client.watch_move("move-9")


def test_rate_and_rest_are_the_pushs_alone() -> None:
    record = move_pb2.MoveRecord(move_id="move-1", phase=move_pb2.MOVE_PHASE_FROZEN)
    message = placement_pb2.MoveProgress(
        phase=move_pb2.MOVE_PHASE_FROZEN, step="push", step_ms=500, sent_bytes=25, total_bytes=100
    )
    progress = move_from_proto(record, message).progress
    assert progress is not None
    assert (progress.rate_bytes_per_s, progress.remaining_ms) == (50.0, 1_500.0)
    for changed in ({"step": "verify"}, {"sent_bytes": 0}, {"step_ms": 0.0}):
        message = placement_pb2.MoveProgress(
            **{"phase": 4, "step": "push", "step_ms": 500, "sent_bytes": 25, "total_bytes": 100}
            | changed
        )
        other = move_from_proto(record, message).progress
        assert other is not None
        assert (other.rate_bytes_per_s, other.remaining_ms) == (0.0, None), changed
    assert move_from_proto(record).progress is None
