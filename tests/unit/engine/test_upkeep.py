"""Upkeep: what an engine hears from placement between moves, and what it does when it does not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from services.engine import upkeep
from services.engine.core import ASK_AFTER_S, Phase
from services.engine.events import MoveOutcome
from services.engine.peers import Directory
from tests.unit.engine.support import DEADLINE_S, Harness, script, slot_mapped, until
from worldline.errors import DeadlineExceeded, Fenced, NotFound, Unavailable, WorldlineError
from worldline.rpc.channel import ChannelPool
from worldline.rpc.server import GrpcServer
from worldline.v1.placement_pb2_grpc import (
    PlacementServiceServicer,
    add_PlacementServiceServicer_to_server,
)


async def test_a_silent_placement_is_asked_and_only_its_word_thaws(source: Harness) -> None:
    await source.open()
    await source.freeze()
    session = source.engine.session("s1")
    look = source.upkeep._ask_if_silent
    await look(session, time.monotonic())
    assert source.directory.asked == []
    await look(session, time.monotonic() + ASK_AFTER_S + 1)
    assert source.directory.asked == ["m1"]
    assert session.world.phase is Phase.FROZEN
    source.directory.outcomes["m1"] = MoveOutcome(ended=True)
    await look(session, time.monotonic() + 2 * ASK_AFTER_S + 2)
    assert session.world.phase is Phase.RUNNING


async def test_a_world_that_the_directory_does_not_name_ends(source: Harness) -> None:
    await source.open()
    for _ in range(upkeep.RENEWALS_MISSED_MAX - 1):
        await source.upkeep._renew()
    assert source.engine.session("s1").world.phase is Phase.RUNNING
    source.directory.owned = {"s1": 1}
    await source.upkeep._renew()
    source.directory.owned = {"s1": 2}  # another owner's epoch is not ours
    for _ in range(upkeep.RENEWALS_MISSED_MAX):
        await source.upkeep._renew()
    await source.engine.session("s1").unmapped(DEADLINE_S)
    source.engine.bury_ended()
    assert source.engine.sessions == {}
    assert not slot_mapped()


async def test_a_renewal_says_at_which_block_each_world_is(source: Harness) -> None:
    await source.open()
    await source.upkeep._renew()
    assert source.directory.running == {"s1": (1, 0)}


async def test_a_renewal_waits_no_longer_than_its_answer_is_worth(source: Harness) -> None:
    """One that hangs must not keep the next ones from being sent."""
    source.directory.lease_ms = 1_500.0
    await source.upkeep._renew()
    await source.upkeep._renew()
    assert source.directory.within_s == 1.5

    class Silent(PlacementServiceServicer):
        async def RenewEngine(self, request: Any, context: Any) -> Any:  # noqa: N802
            await asyncio.Event().wait()

    server, channels = GrpcServer(), ChannelPool()
    address = server.bind("127.0.0.1:0")
    add_PlacementServiceServicer_to_server(Silent(), server.server)
    await server.start()
    async with asyncio.timeout(60):
        with pytest.raises(DeadlineExceeded):
            await Directory(channels, address, 60.0).renew("e1", "i1", (), (), (), 0.05)
    await channels.close()
    await server.stop(0)


async def test_a_world_in_doubt_waits_for_the_directory(source: Harness) -> None:
    """The engine was stopped and its session closed: another may have its slot by now."""
    await source.open()
    session = source.engine.session("s1")
    async with source.join(0) as player:
        await player.joined()
        await source.upkeep._renew()
        await player.act(script(0))
        await until(lambda: session.world.pending, session)
        assert source.engine.generation._claims(0.0) == []
        source.directory.owned = {"s1": 1}
        await source.upkeep._renew()
        assert (await player.block()).block_index == 0


async def test_a_world_that_lost_its_owner_runs_not_one_quantum_more(source: Harness) -> None:
    await source.open()
    session = source.engine.session("s1")
    async with source.join(0) as player:
        await player.joined()
        await player.play(0, 1)
        await player.act(script(1))
        await until(lambda: session.world.phase is Phase.GENERATING, session)
        for _ in range(upkeep.RENEWALS_MISSED_MAX):
            await source.upkeep._renew()
        assert session.world.disowned
        with pytest.raises(Fenced) as lost:
            await player.read()
        assert lost.value.reason == "OWNERSHIP_LOST"
    assert session.outbox.next_block_index == 1
    await session.unmapped(DEADLINE_S)
    assert not slot_mapped()


async def test_a_frozen_world_is_not_ended_by_renewals(source: Harness) -> None:
    await source.open()
    await source.freeze()
    for _ in range(2 * upkeep.RENEWALS_MISSED_MAX):
        await source.upkeep._renew()
    assert source.engine.session("s1").world.phase is Phase.FROZEN


async def test_a_directory_that_forgot_the_engine_hears_of_it_again(source: Harness) -> None:
    async def forgotten(*_: Any) -> Any:
        raise NotFound("who?")

    source.directory.renew = forgotten
    await source.upkeep._renew()
    assert source.directory.registered == ["e1", "e1"]


async def test_placement_away_at_start_is_named(source: Harness) -> None:
    source.directory.failure = Unavailable("nobody there")
    with pytest.raises(Unavailable) as refused:
        await source.upkeep.register(0.0)
    assert refused.value.reason == "PLACEMENT_UNREACHABLE"
    assert refused.value.field == "placement_address"


async def test_the_directory_hears_of_a_world_whose_block_failed(source: Harness) -> None:
    await source.open("s1")
    await source.open("s2")
    source.engine.session("s1").memory.state["kv_cache"][0]["global_end_index"].fill_(7)
    async with source.join(0, "s1") as player:
        await player.joined()
        await player.act(script(0))
        with pytest.raises(WorldlineError):
            await player.read()
    await source.engine.session("s1").unmapped(DEADLINE_S)
    source.engine.bury_ended()
    await source.upkeep._renew()
    assert [(one.session_id, one.epoch) for one in source.directory.failed] == [("s1", 1)]
    assert "global_end_index" in source.directory.failed[0].message
