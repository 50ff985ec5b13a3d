"""A world that is suspended here: how it ends, and what an engine does that missed its detach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.engine import events as ev
from services.engine.core import Phase, World, decide
from services.engine.peers import Directory
from worldline.errors import Conflict, Fenced, NotFound
from worldline.rpc.channel import ChannelPool
from worldline.rpc.server import GrpcServer
from worldline.v1 import park_pb2, placement_pb2, placement_pb2_grpc

FROZEN = World("s", 3, Phase.FROZEN, block_index=7, move_id="suspend-1", heard_at=0.0)


def ending_of(world: World) -> ev.Ending:
    assert world.phase is Phase.RELEASED
    assert world.ending is not None
    return world.ending


def test_a_suspended_world_ends_with_the_way_back() -> None:
    detach = ev.DetachAsked("suspend-1", epoch=3, suspended=True)
    decision = decide(FROZEN, detach, 1.0)
    error = ending_of(decision.world).error
    assert isinstance(error, Conflict)
    assert error.reason == "SESSION_SUSPENDED"
    assert "worldline resume s" in error.message
    assert decision.effects == (ev.EndWorld(ending_of(decision.world)),)
    # Told twice: it is gone already.
    assert decide(decision.world, detach, 2.0).world == decision.world


def test_only_its_own_suspension_in_its_own_epoch_ends_it() -> None:
    with pytest.raises(Conflict) as caught:
        decide(FROZEN, ev.DetachAsked("suspend-2", epoch=3, suspended=True), 1.0)
    assert caught.value.reason == "OTHER_MOVE"
    with pytest.raises(Fenced):
        decide(FROZEN, ev.DetachAsked("suspend-1", epoch=2, suspended=True), 1.0)


def test_a_running_world_is_never_just_detached() -> None:
    running = replace(FROZEN, phase=Phase.RUNNING, move_id="")
    with pytest.raises(Conflict):
        decide(running, ev.DetachAsked("suspend-1", epoch=3, suspended=True), 1.0)


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        (ev.MoveOutcome(suspended=True), Phase.FROZEN),
        (ev.MoveOutcome(committed=True, suspended=True), Phase.FROZEN),
        (ev.MoveOutcome(ended=True, suspended=True), Phase.RUNNING),
        (ev.MoveOutcome(committed=True, over=True, suspended=True), Phase.RELEASED),
    ],
)
def test_a_world_that_hears_nothing_asks(outcome: ev.MoveOutcome, phase: Phase) -> None:
    asked = decide(FROZEN, ev.AskTimerFired(), 10.0)
    assert asked.effects == (ev.AskMove("suspend-1"),)
    after = decide(asked.world, ev.MoveAnswered("suspend-1", outcome), 11.0).world
    assert after.phase is phase
    if phase is Phase.RELEASED:
        error = ending_of(after).error
        assert error is not None
        assert error.reason == "SESSION_SUSPENDED"


class _Placement(placement_pb2_grpc.PlacementServiceServicer):
    def __init__(self, record: park_pb2.SuspensionRecord | None) -> None:
        self.record = record

    async def GetMove(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotFound("no such move")

    async def GetSuspension(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.record is None:
            raise NotFound("no such suspension")
        return placement_pb2.GetSuspensionResponse(suspension=self.record)


def record(verb: str, phase: str) -> park_pb2.SuspensionRecord:
    return park_pb2.SuspensionRecord(
        verb=f"SUSPENSION_VERB_{verb}", phase=f"SUSPENSION_PHASE_{phase}"
    )


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (None, ev.MoveOutcome()),
        (record("SUSPEND", "BEGUN"), ev.MoveOutcome(suspended=True)),
        (record("SUSPEND", "RECORDED"), ev.MoveOutcome(committed=True, suspended=True)),
        (record("SUSPEND", "DONE"), ev.MoveOutcome(committed=True, over=True, suspended=True)),
        (record("SUSPEND", "ABORTED"), ev.MoveOutcome(ended=True, suspended=True)),
        (record("RESUME", "UNDOING"), ev.MoveOutcome()),
        (record("RESUME", "DONE"), ev.MoveOutcome(committed=True, over=True)),
        (record("RESUME", "ABORTED"), ev.MoveOutcome(ended=True)),
    ],
)
async def test_what_the_directory_says_of_it(
    found: park_pb2.SuspensionRecord | None, outcome: ev.MoveOutcome
) -> None:
    server, pool = GrpcServer(), ChannelPool()
    server.bind("127.0.0.1:0")
    register = placement_pb2_grpc.add_PlacementServiceServicer_to_server
    server.add(register, _Placement(found), "Placement")
    await server.start()
    try:
        assert await Directory(pool, server.address, 60.0).outcome("suspend-1") == outcome
    finally:
        await pool.close()
        await server.stop(0)
