"""Playing over gRPC: blocks as a twin that never moved, and streams that come and go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import torch

from services.engine.core import PENDING_MAX, Phase
from services.engine.events import ActionArrived
from services.engine.lease import Lease
from services.engine.model.causal import CausalWorld
from services.engine.model.config import TINY
from services.engine.model.weights import build_weights
from services.engine.outbox import OUTBOX_BLOCKS
from services.engine.session import Stream
from services.engine.world import Action, Frames, StateTree
from tests.unit.engine.support import (
    DEADLINE_S,
    Harness,
    SlotServer,
    script,
    slot_mapped,
    twin_digests,
    until,
)
from worldline.contract import DecodeTier
from worldline.errors import (
    Conflict,
    IntegrityError,
    InvalidInput,
    InvariantBroken,
    NotFound,
    WorldlineError,
)
from worldline.rpc.channel import call
from worldline.state.digest import crc64
from worldline.v1 import engine_pb2

SLOT_BYTES = 32 << 20


@pytest.fixture
def slot_server(tmp_path: Path):
    server = SlotServer(str(tmp_path / "slots.sock"), SLOT_BYTES)
    yield server
    server.close()


@pytest.fixture
async def harness(slot_server: SlotServer):
    async with Harness(slot_server) as harness:
        yield harness


async def test_blocks_equal_those_of_a_twin(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0) as player:
        joined = await player.joined()
        assert (joined.epoch, joined.next_block_index) == (1, 0)
        blocks = await player.play(0, 4)
    expected = twin_digests(4)
    assert [(b.state_digest, b.frames_digest) for b in blocks] == expected
    assert [b.block_index for b in blocks] == [0, 1, 2, 3]
    assert all(crc64(b.frames) == b.frames_digest for b in blocks)
    assert len(blocks[0].frames) == 12 * 64 * 64 * 3
    assert blocks[0].generate_ms > 0


async def test_an_unclean_slot_gives_the_same_digests(
    harness: Harness, slot_server: SlotServer
) -> None:
    """What a slot's last tenant left between leaves is not part of the next one's state."""
    allocate = harness.slots.allocate

    async def dirty(session_id: str, extent_bytes: int):
        slot = await allocate(session_id, extent_bytes)
        with slot_server.bytes_of(slot.slot_index) as memory:
            memory[:] = b"\xa5" * SLOT_BYTES
        return slot

    harness.slots.allocate = dirty
    await harness.open()
    async with harness.join(0) as player:
        await player.joined()
        (block,) = await player.play(0, 1)
    assert (block.state_digest, block.frames_digest) == twin_digests(1)[0]


async def test_what_is_not_wanted_is_not_sent(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0, digests_wanted=False, frames_wanted=False) as player:
        await player.joined()
        (block,) = await player.play(0, 1)
    assert not block.HasField("state_digest")
    assert (block.frames, block.frame_count, block.height) == (b"", 0, 0)
    assert block.frames_digest == twin_digests(1)[0][1]


@pytest.mark.parametrize(("tier", "side"), [(DecodeTier.HALF, 32), (DecodeTier.NONE, 0)])
async def test_the_decode_tier_changes_the_frames_and_not_the_state(
    harness: Harness, tier: DecodeTier, side: int
) -> None:
    await harness.open(decode_tier=tier)
    async with harness.join(0) as player:
        await player.joined()
        (block,) = await player.play(0, 1)
    assert (block.height, block.width) == (side, side)
    assert len(block.frames) == block.frame_count * side * side * 3
    assert block.state_digest == twin_digests(1)[0][0]
    if side:
        assert np.frombuffer(block.frames, dtype=np.uint8).std() > 10


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (engine_pb2.Action(block_index=1), "action.block_index"),
        (engine_pb2.Action(block_index=0, keyboard=16), "action.keyboard"),
        (engine_pb2.Action(block_index=0, mouse_dx=math.nan), "action.mouse_dx"),
        (engine_pb2.Action(block_index=0, mouse_dy=math.inf), "action.mouse_dy"),
        (engine_pb2.Action(block_index=0, mouse_dy=-1.5), "action.mouse_dy"),
    ],
)
async def test_a_bad_action_is_named_and_loses_nothing(
    harness: Harness, message: engine_pb2.Action, field: str
) -> None:
    await harness.open()
    async with harness.join(0) as player:
        await player.joined()
        await player.write(engine_pb2.PlayRequest(action=message))
        with pytest.raises(InvalidInput) as refused:
            await player.read()
        assert refused.value.field == field
    async with harness.join(0) as player:
        assert (await player.joined()).next_block_index == 0
        blocks = await player.play(0, 2)
    assert [b.state_digest for b in blocks] == [digest for digest, _ in twin_digests(2)]


async def test_a_stream_must_begin_with_a_join_and_go_on_with_actions(harness: Harness) -> None:
    await harness.open()
    stream = harness.stub.Play(timeout=DEADLINE_S)
    await stream.write(engine_pb2.PlayRequest(action=engine_pb2.Action(block_index=0)))
    await stream.done_writing()
    assert (await stream.code()).name == "INVALID_ARGUMENT"
    async with harness.join(0) as player:
        await player.joined()
        await player.write(engine_pb2.PlayRequest(join=engine_pb2.Join(session_id="s1")))
        with pytest.raises(InvalidInput) as refused:
            await player.read()
        assert refused.value.field == "action"


async def test_joins_for_what_is_not_there(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0, "nobody") as player:
        with pytest.raises(NotFound) as unknown:
            await player.read()
        assert unknown.value.reason == "SESSION_UNKNOWN"
    async with harness.join(1) as player:
        with pytest.raises(InvalidInput) as ahead:
            await player.read()
        assert ahead.value.field == "join.next_block_index"


async def test_a_client_that_vanishes_gets_its_blocks_when_it_returns(harness: Harness) -> None:
    await harness.open()
    session = harness.engine.session("s1")
    async with harness.join(0) as player:
        await player.joined()
        for index in range(3):
            await player.act(script(index))
        await player.block()
        await until(lambda: session.world.block_index == 3, session)
    # Read one, lost two: they come again, in order, then the world goes on.
    async with harness.join(1) as player:
        assert (await player.joined()).next_block_index == 3
        again = [await player.block(), await player.block()]
        more = await player.play(3, 1)
    blocks = [*again, *more]
    assert [b.block_index for b in blocks] == [1, 2, 3]
    expected = twin_digests(4)[1:]
    assert [(b.state_digest, b.frames_digest) for b in blocks] == expected


async def test_actions_that_are_sent_again_count_once(harness: Harness) -> None:
    """The client cannot know which of its unanswered actions began their block."""
    await harness.open()
    async with harness.join(0) as player:
        await player.joined()
        await player.play(0, 2)
    async with harness.join(1) as player:
        assert (await player.joined()).next_block_index == 2
        for index in range(1, 4):
            await player.act(script(index))
        blocks = [await player.block() for _ in range(3)]
    assert [b.block_index for b in blocks] == [1, 2, 3]
    assert [b.state_digest for b in blocks] == [d for d, _ in twin_digests(4)[1:]]


async def test_actions_of_a_vanished_client_that_began_no_block_are_forgotten(
    harness: Harness,
) -> None:
    await harness.open()
    harness.engine.lease = Lease()  # nothing generates
    session = harness.engine.session("s1")
    async with harness.join(0) as player:
        await player.joined()
        await player.act(script(0))
        await until(lambda: len(session.world.pending) == 1, session)
    await until(lambda: not session.world.pending, session)
    harness.engine.lease = Lease(60.0, math.inf)
    async with harness.join(0) as player:
        assert (await player.joined()).next_block_index == 0
        (block,) = await player.play(0, 1)
    assert block.state_digest == twin_digests(1)[0][0]


async def test_blocks_that_are_gone_are_an_error_and_never_skipped(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0, digests_wanted=False) as player:
        await player.joined()
        await player.play(0, 10)
    async with harness.join(1) as player:
        with pytest.raises(IntegrityError) as lost:
            await player.read()
        assert lost.value.reason == "BLOCKS_LOST"
    async with harness.join(2) as player:
        await player.joined()
        assert (await player.block()).block_index == 2


async def test_a_newer_stream_takes_over(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0) as older:
        await older.joined()
        await older.play(0, 1)
        async with harness.join(1) as newer:
            await newer.joined()
            with pytest.raises(Conflict) as superseded:
                await older.read()
            assert superseded.value.reason == "SUPERSEDED"
            (block,) = await newer.play(1, 1)
    assert block.state_digest == twin_digests(2)[1][0]


async def test_a_client_that_does_not_read_stops_the_world_before_a_block_is_lost(
    harness: Harness,
) -> None:
    await harness.open()
    session = harness.engine.session("s1")
    async with harness.join(0, digests_wanted=False) as player:
        await player.joined()
        writer = asyncio.create_task(_send(player, 40))
        try:
            # Whatever the transport buffers, the engine never runs ahead of its outbox.
            await until(lambda: len(session.world.pending) == 8, session)
            blocks = [await player.block() for _ in range(40)]
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
    assert [b.block_index for b in blocks] == list(range(40))


async def _send(player, count: int) -> None:
    for index in range(count):
        await player.act(script(index))


async def test_a_half_closed_stream_gets_its_blocks_and_ends(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0) as player:
        await player.joined()
        await player.act(script(0))
        await player.act(script(1))
        await player.call.done_writing()
        assert [(await player.block()).block_index for _ in range(2)] == [0, 1]
        with pytest.raises(EOFError):
            await player.read()


async def test_closing_ends_the_stream_and_unmaps(harness: Harness) -> None:
    await harness.open()
    async with harness.join(0) as player:
        await player.joined()
        await player.play(0, 1)
        close = engine_pb2.CloseWorldRequest(session_id="s1", epoch=1)
        await harness.ask("CloseWorld", close)
        assert not slot_mapped()
        with pytest.raises(Conflict) as closed:
            await player.read()
        assert closed.value.reason == "SESSION_CLOSED"
    await harness.ask("CloseWorld", close)
    assert harness.engine.sessions == {}


async def test_two_sessions_share_the_engine_and_not_their_worlds(harness: Harness) -> None:
    await harness.open("a")
    await harness.open("b")
    async with harness.join(0, "a") as left, harness.join(0, "b") as right:
        await left.joined()
        await right.joined()
        both = await asyncio.gather(left.play(0, 3), right.play(0, 3))
    expected = [digest for digest, _ in twin_digests(3)]
    for blocks in both:
        assert [b.state_digest for b in blocks] == expected


async def test_a_lost_lease_pauses_the_world_and_a_renewed_one_continues_it(
    harness: Harness,
) -> None:
    await harness.open()
    session = harness.engine.session("s1")
    async with harness.join(0) as player:
        await player.joined()
        await player.play(0, 1)
        harness.engine.lease = Lease(lease_s=1.0, sent_at=0.0)  # ran out long ago
        await player.act(script(1))
        await until(lambda: len(session.world.pending) == 1, session)
        assert session.world.phase is Phase.RUNNING
        harness.directory.owned = {"s1": 1}
        await harness.upkeep._renew()
        block = await player.block()
    assert block.state_digest == twin_digests(2)[1][0]


async def test_the_loop_answers_while_torch_computes(harness: Harness) -> None:
    await harness.open(preset="small")
    async with harness.join(0) as player:
        await player.joined()
        session = harness.engine.session("s1")
        with harness.held_quanta():
            await player.act(Action(0))
            await until(lambda: session.world.phase is Phase.GENERATING, session)
            await harness.ask("DescribeEngine", engine_pb2.DescribeEngineRequest())
            assert session.world.phase is Phase.GENERATING
        await player.block()


async def test_a_failing_model_ends_its_world_with_an_error_and_unmaps(harness: Harness) -> None:
    await harness.open()
    session = harness.engine.session("s1")
    session.memory.state["kv_cache"][0]["global_end_index"].fill_(7)
    async with harness.join(0) as player:
        await player.joined()
        await player.act(script(0))
        with pytest.raises(WorldlineError) as failed:
            await player.read()
        assert failed.value.leaf == "kv_cache[0].global_end_index"
    await session.unmapped(DEADLINE_S)
    assert not slot_mapped()
    harness.engine.bury_ended()
    with pytest.raises(NotFound):
        await call(
            harness.stub.RegisterWorld,
            engine_pb2.RegisterWorldRequest(session_id="s1"),
            timeout_s=DEADLINE_S,
        )


class _Returning(CausalWorld):
    """Returns no frames from its second block on."""

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        frames = yield from super().block(state, action, steps)
        return frames if action.block_index == 0 else None  # type: ignore[return-value]


class _Eager(CausalWorld):
    """Fails before it has made a generator, in its second block."""

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        if action.block_index > 0:
            raise ValueError("out of tune")
        return super().block(state, action, steps)


@pytest.mark.parametrize(
    ("model", "said"),
    [(_Returning, "returned NoneType, not Frames"), (_Eager, "ValueError: out of tune")],
)
async def test_a_block_that_is_none_ends_its_world_and_no_other(
    harness: Harness, model: type[CausalWorld], said: str
) -> None:
    """Neither quanta without end nor an engine that ends."""
    await harness.open("s2")
    await harness.open()
    weights = build_weights(TINY, 0, torch.device("cpu"))
    harness.engine.session("s1").model = model(weights)
    async with harness.join(0) as player:
        await player.joined()
        await player.act(script(0))
        await player.block()
        await player.act(script(1))
        with pytest.raises(InvariantBroken, match=said):
            await player.read()
    async with harness.join(0, "s2") as player:
        await player.joined()
        await player.play(0, 2)


async def test_no_block_is_begun_that_would_push_an_unread_one_out(harness: Harness) -> None:
    await harness.open()
    session = harness.engine.session("s1")
    session.stream = Stream(cursor=0, digests_wanted=False)
    for index in range(OUTBOX_BLOCKS + 2):
        await until(lambda: len(session.world.pending) < PENDING_MAX, session)
        session.apply(ActionArrived(script(index)), 0.0)
        harness.engine.generation.wake.notify()
    await until(lambda: session.world.block_index == OUTBOX_BLOCKS, session)
    # Full: the schedule sees no candidate, whatever waits.
    assert len(session.world.pending) == 2
    assert harness.engine.generation._claims(0.0) == []
    session.stream.cursor += 1
    harness.engine.generation.wake.notify()
    await until(lambda: session.world.block_index == OUTBOX_BLOCKS + 1, session)
    assert session.outbox.get(1).block_index == 1


@pytest.mark.parametrize("digests_wanted", [False, True])
async def test_a_model_that_replaces_a_leaf_ends_its_world_and_no_other(
    harness: Harness, digests_wanted: bool
) -> None:
    await harness.open("s1")
    await harness.open("s2")
    noise = harness.engine.session("s1").memory.state["noise"]
    noise["generator"] = noise["generator"].clone()
    del noise
    async with harness.join(0, "s1", digests_wanted=digests_wanted) as player:
        await player.joined()
        await player.act(script(0))
        with pytest.raises(WorldlineError) as failed:
            await player.read()
        assert failed.value.reason == "LEAF_REPLACED"
        assert failed.value.leaf == "noise.generator"
    async with harness.join(0, "s2") as player:
        await player.joined()
        assert len(await player.play(0, 2)) == 2
