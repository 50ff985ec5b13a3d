from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.unit.sdk.fakes import Stage
from worldline.errors import Conflict, DeadlineExceeded, IntegrityError, InvalidInput, Unavailable
from worldline.sdk import Action, Block, Client
from worldline.telemetry import span, start

FAULTS = ("drop_before", "drop_after", "move_before", "move_after", "twice", "transfer")


def scripted(index: int) -> Action:
    return Action(index % 16, (index % 7) / 10)


def script(count: int) -> Iterator[Action]:
    return (scripted(index) for index in range(count))


def check(blocks: list[Block], stage: Stage, count: int) -> None:
    """None lost, none twice, each generated from its own action."""
    assert [block.index for block in blocks] == list(range(count))
    assert all(block.frames[0, 0, 0, 0] == block.index % 256 for block in blocks)
    assert {index: action.keyboard for index, action in stage.world.used.items()} == {
        index: scripted(index).keyboard for index in range(count)
    }


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_survived(
    stage: Stage, client: Client, fault: str, window: int
) -> None:
    stage.world.faults = {3: fault}
    session = await client.open("tiny")
    blocks = [block async for block in session.play(script(8), window=window, digests=True)]
    check(blocks, stage, 8)
    assert not stage.world.faults
    assert [block.state_digest for block in blocks] == [1000 + index for index in range(8)]


@pytest.mark.parametrize("seed", range(8))
async def test_many_faults_are_survived(stage: Stage, client: Client, seed: int) -> None:
    chance = random.Random(seed)
    faulty = chance.sample(range(24), 9)
    stage.world.faults = {index: chance.choice(FAULTS) for index in faulty}
    session = await client.open("tiny")
    window = chance.choice((1, 2, 5))
    blocks = [block async for block in session.play(script(24), window=window)]
    check(blocks, stage, 24)
    assert not stage.world.faults


async def test_a_break_joins_the_same_engine_before_asking(stage: Stage, client: Client) -> None:
    stage.world.faults = {1: "drop_after"}
    session = await client.open("tiny")
    check([block async for block in session.play(script(3))], stage, 3)
    assert stage.world.joins == [(0, 0), (0, 1)]
    assert "ResolveSession" not in [name for name, _ in stage.placement.calls]


async def test_a_move_shows_in_the_epoch(stage: Stage, client: Client) -> None:
    stage.world.faults = {2: "move_before"}
    session = await client.open("tiny")
    blocks = [block async for block in session.play(script(4))]
    assert [block.epoch for block in blocks] == [1, 1, 2, 2]
    assert session.epoch == 2
    assert session.info.node_id == "node-1"


async def test_blocks_that_are_gone_are_an_error(stage: Stage, client: Client) -> None:
    stage.world.faults = {2: "lose"}
    session = await client.open("tiny")
    with pytest.raises(IntegrityError) as caught:
        async for _ in session.play(script(4)):
            pass
    assert caught.value.reason == "BLOCKS_LOST"


async def test_a_gap_is_an_error(stage: Stage, client: Client) -> None:
    stage.world.faults = {2: "skip"}
    session = await client.open("tiny")
    seen = []
    with pytest.raises(IntegrityError):
        async for block in session.play(script(4)):
            seen.append(block.index)
    assert seen == [0, 1]


async def test_a_superseded_player_stops(stage: Stage, client: Client) -> None:
    stage.world.faults = {1: "superseded"}
    session = await client.open("tiny")
    with pytest.raises(Conflict) as caught:
        [block async for block in session.play(script(3))]
    assert caught.value.reason == "SUPERSEDED"
    assert len(stage.world.joins) == 1


async def test_actions_are_taken_one_by_one(stage: Stage, client: Client) -> None:
    """A player with a window of 1 sees block i before it is asked for action i + 1."""
    seen: list[int] = []

    async def reactive() -> AsyncIterator[Action]:
        for index in range(5):
            assert len(seen) == index
            yield scripted(index)

    session = await client.open("tiny")
    async for block in session.play(reactive()):
        seen.append(block.index)
    assert seen == list(range(5))


async def test_the_players_own_generator_is_closed(stage: Stage, client: Client) -> None:
    closed = asyncio.Event()

    async def careful() -> AsyncIterator[Action]:
        try:
            for index in range(5):
                yield scripted(index)
        finally:
            closed.set()

    session = await client.open("tiny")
    stream = session.play(careful())
    await anext(stream)
    await stream.aclose()
    assert closed.is_set()


async def test_blocks_come_while_the_next_action_is_awaited(stage: Stage, client: Client) -> None:
    more = asyncio.Event()

    async def slow() -> AsyncIterator[Action]:
        yield scripted(0)
        await more.wait()
        yield scripted(1)

    session = await client.open("tiny")
    seen = []
    async with asyncio.timeout(60):
        async for block in session.play(slow(), window=4):
            seen.append(block.index)
            more.set()
    assert seen == [0, 1]


async def test_playing_goes_on_where_it_was_left(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    async for block in session.play(script(10), window=4):
        if block.index == 2:
            break
    rest = []
    async for block in session.play((scripted(index) for index in range(100, 104)), window=2):
        rest.append(block.index)
    assert rest[0] == 3
    assert rest == list(range(3, rest[-1] + 1))
    assert rest[-1] >= 6


async def test_two_players_of_one_session_object(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    first = session.play(script(3))
    await anext(first)
    with pytest.raises(Conflict) as caught:
        await anext(session.play(script(1)))
    assert caught.value.reason == "PLAYING"
    await first.aclose()


async def test_patience_ends(stage: Stage) -> None:
    async with Client(stage.address, patience_s=0.5) as client:
        session = await client.open("tiny")
        for server in stage.servers[:-1]:
            await server.stop(0)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(60):
                [block async for block in session.play(script(1))]


async def test_a_block_that_never_comes(stage: Stage) -> None:
    async def stuck(action: object) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield None

    stage.engines[0]._one = stuck  # type: ignore[method-assign, assignment]
    async with Client(stage.address, block_timeout_s=0.3) as client:
        session = await client.open("tiny")
        with pytest.raises(DeadlineExceeded) as caught:
            [block async for block in session.play(script(1))]
    assert caught.value.reason == "BLOCK_TIMEOUT"
    assert "cohort" in caught.value.message


@pytest.mark.parametrize("window", [0, 9])
async def test_window_bounds(stage: Stage, client: Client, window: int) -> None:
    session = await client.open("tiny")
    with pytest.raises(InvalidInput) as caught:
        await anext(session.play(script(1), window=window))
    assert caught.value.field == "window"


async def test_no_task_is_left(stage: Stage, client: Client) -> None:
    stage.world.faults = {2: "drop_after", 4: "move_before"}
    session = await client.open("tiny")
    before = len(asyncio.all_tasks())
    stream = session.play(script(100), window=4)
    for _ in range(6):
        await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - tasks tell nobody
            await asyncio.sleep(0)


async def test_the_callers_trace_reaches_engine_and_placement(stage: Stage, client: Client) -> None:
    telemetry = start("client")
    with span("watch") as active:
        session = await client.open("tiny")
        [block async for block in session.play(script(1))]
        assert active.trace_id in stage.placement.metadata[0]["traceparent"]
        assert active.trace_id in stage.engines[0].metadata[0]["traceparent"]
    assert telemetry.shutdown()
