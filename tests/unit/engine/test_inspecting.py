"""Inspecting over gRPC: the flags of a live world are those of a twin, and nobody is in its way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from services.engine import baseline
from services.engine.inspect_order import inspect_order_from_proto
from services.engine.inspecting import WAITING_MAX, Begun
from services.engine.memory import Memory
from tests.unit.engine.owning import make_owning
from tests.unit.engine.support import (
    DEADLINE_S,
    Harness,
    PrivateState,
    SlotServer,
    script,
    tiny_world,
)
from tests.unit.state.traces import segment_crcs
from worldline.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    WorldlineError,
)
from worldline.rpc.channel import mapped_errors
from worldline.state.boundary import Baseline, Boundary
from worldline.state.boundary_codec import boundary_from_proto
from worldline.state.codec import layout_from_proto
from worldline.state.dirty import DirtyTrace
from worldline.state.inspection import inspection_of
from worldline.state.segments import segments_of
from worldline.state.tracer import Tracer
from worldline.state.update_rule import UpdateRule
from worldline.v1 import engine_pb2

SEED = 7
WAIT_MS = 60_000


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    server = SlotServer(str(tmp_path / "slots.sock"), 32 << 20)
    async with Harness(server) as harness:
        yield harness
    server.close()


def request(boundaries: int = 2, **fields: Any) -> engine_pb2.InspectWorldRequest:
    values: dict[str, Any] = {
        "session_id": "s1",
        "boundaries": boundaries,
        "wait_ms": WAIT_MS,
        "world": engine_pb2.WorldSpec(preset="tiny", seed=SEED),
    }
    return engine_pb2.InspectWorldRequest(**{**values, **fields})


class Watcher:
    """One inspection, message by message."""

    def __init__(self, harness: Harness, asked: engine_pb2.InspectWorldRequest) -> None:
        self.call = harness.stub.InspectWorld(asked, timeout=DEADLINE_S)
        self.begun: Begun | None = None
        self.boundaries: list[Boundary] = []

    async def next(self) -> Boundary:
        async with mapped_errors():
            if self.begun is None:
                begun = (await self._read()).begun
                known = Baseline.INITIAL_STATE if begun.initial_state_known else Baseline.ZEROS
                layout = layout_from_proto(begun.layout)
                self.begun = Begun(layout, begun.granule_bytes, begun.epoch, known)
            count = segments_of(self.begun.layout, self.begun.granule_bytes).count
            boundary = boundary_from_proto((await self._read()).boundary, count)
        self.boundaries.append(boundary)
        return boundary

    async def _read(self) -> engine_pb2.InspectWorldResponse:
        message = await self.call.read()
        if message is grpc.aio.EOF:
            await self.call.code()
            # read() hides the status once the stream is over: ask for it again.
            await self.call
        assert isinstance(message, engine_pb2.InspectWorldResponse), "the stream ended"
        return message

    def trace(self) -> DirtyTrace:
        assert self.begun is not None
        begun = self.begun
        return DirtyTrace(begun.layout, begun.granule_bytes, begun.baseline, tuple(self.boundaries))


async def settled(holds: Callable[[], bool]) -> None:
    """Until it holds, looked at again and again."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - of several objects, none of which says when
            await asyncio.sleep(0.005)


async def watched(harness: Harness, blocks: int, **fields: Any) -> DirtyTrace:
    """The trace of the first blocks of a world that is played meanwhile."""
    watcher = Watcher(harness, request(blocks + 1, **fields))
    await watcher.next()
    async with harness.join(0) as player:
        await player.joined()
        for index in range(blocks):  # all at once: each block is begun as soon as it may be
            await player.act(script(index))
        for _ in range(blocks):
            await watcher.next()
            await player.block()
    return watcher.trace()


def twins_trace(blocks: int, granule_bytes: int) -> DirtyTrace:
    """The same of a state in ordinary memory that no engine runs."""
    twin = PrivateState(tiny_world(), SEED)
    here = segment_crcs(twin.layout, twin.buffer, granule_bytes)
    tracer = Tracer(here)
    boundaries = [tracer.boundary(0, 0.0, 0.0, here)]
    for index in range(blocks):
        twin.block(script(index))
        here = segment_crcs(twin.layout, twin.buffer, granule_bytes)
        boundaries.append(tracer.boundary(index + 1, index + 1.0, 0.0, here))
    return DirtyTrace(twin.layout, granule_bytes, Baseline.INITIAL_STATE, tuple(boundaries))


def assert_same_flags(one: DirtyTrace, other: DirtyTrace) -> None:
    assert one.layout.topology_hash == other.layout.topology_hash
    for here, there in zip(one.boundaries, other.boundaries, strict=True):
        assert here.block_index == there.block_index
        assert np.array_equal(here.changed, there.changed)
        assert np.array_equal(here.differs, there.differs)


@pytest.mark.parametrize("owning", [False, True])
async def test_a_played_world_shows_what_its_twin_shows(harness: Harness, owning: bool) -> None:
    """Every boundary is seen: the next block does not begin before the last one's was read."""
    if owning:
        make_owning(harness)
    await harness.open()
    trace = await watched(harness, 4, granule_bytes=256)
    assert trace.baseline is Baseline.INITIAL_STATE
    assert_same_flags(trace, twins_trace(4, 256))
    assert inspection_of(trace).classification.rule is UpdateRule.WINDOW_REWRITE
    assert [each.at_ms for each in trace.boundaries] == sorted(
        each.at_ms for each in trace.boundaries
    )
    await settled(lambda: harness.engine.sessions["s1"].held == 0)


async def test_no_boundary_is_read_in_mid_block(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.open()
    session, read = harness.engine.sessions["s1"], Memory.segment_crcs
    seen: list[bool] = []

    def noted(memory: Memory, granule_bytes: int) -> Any:
        seen.append(session.world.mid_block)
        result = read(memory, granule_bytes)
        seen.append(session.world.mid_block)
        return result

    monkeypatch.setattr(Memory, "segment_crcs", noted)
    await watched(harness, 3)
    assert seen == [False] * 8


async def test_a_slow_caller_misses_no_boundary(harness: Harness) -> None:
    """Blocks are seen when they end, not when the last ones were sent."""
    await harness.open()
    order = inspect_order_from_proto(request(5))
    async with aclosing(harness.engine.inspecting.run(order)) as inspected:
        assert isinstance(await anext(inspected), Begun)
        seen = [await anext(inspected)]
        async with harness.join(0) as player:
            await player.joined()
            await player.play(0, 4)
        seen += [each async for each in inspected]
    assert [each.block_index for each in seen if isinstance(each, Boundary)] == [0, 1, 2, 3, 4]
    assert not harness.engine.inspecting._inspected


async def test_a_caller_that_takes_nothing_holds_nobody(harness: Harness) -> None:
    """A world plays on past the boundaries that wait; those in between are missed, and it shows."""
    await harness.open()
    blocks = WAITING_MAX + 3
    order = inspect_order_from_proto(request(WAITING_MAX + 3))
    async with aclosing(harness.engine.inspecting.run(order)) as inspected:
        assert isinstance(await anext(inspected), Begun)
        seen = [await anext(inspected)]
        async with harness.join(0) as player:
            await player.joined()
            await player.play(0, blocks)
        seen += [await anext(inspected) for _ in range(WAITING_MAX + 1)]
    found = [each.block_index for each in seen if isinstance(each, Boundary)]
    assert found[: WAITING_MAX + 1] == list(range(WAITING_MAX + 1))
    assert found == sorted(set(found))


async def test_without_room_for_a_second_state_zeros_stand_in(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a tiny world's first state is zero but its first frame and its generator."""
    monkeypatch.setattr(baseline, "_free_bytes", lambda device: 0)
    await harness.open()
    trace = await watched(harness, 2)
    assert trace.baseline is Baseline.ZEROS
    never = {trace.layout.tensors[index].path for index in trace.never_written()}
    expected = twins_trace(2, trace.granule_bytes)
    known = {expected.layout.tensors[index].path for index in expected.never_written()}
    assert known - never == {"first_frame"}
    assert never <= known


async def test_a_world_that_nobody_plays_says_so(harness: Harness) -> None:
    await harness.open()
    watcher = Watcher(harness, request(2, wait_ms=50))
    await watcher.next()
    with pytest.raises(
        DeadlineExceeded, match=r"nobody sends an action.*worldline play s1"
    ) as late:
        await watcher.next()
    assert late.value.reason == "NO_BOUNDARY"
    assert harness.engine.sessions["s1"].held == 0


async def test_a_block_that_takes_too_long_is_named(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "_free_bytes", lambda device: 0)  # the worker is held
    await harness.open()
    async with harness.join(0) as player:
        await player.joined()
        with harness.held_quanta():
            await player.act(script(0))
            await settled(lambda: harness.engine.sessions["s1"].world.mid_block)
            with pytest.raises(DeadlineExceeded, match="block 0 is still being generated"):
                await Watcher(harness, request(2, wait_ms=50)).next()
        assert (await player.block()).block_index == 0


async def test_a_freeze_is_granted_while_a_boundary_is_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.open()
    may_read, reading, read = threading.Event(), threading.Event(), Memory.segment_crcs

    def held(memory: Memory, granule_bytes: int) -> Any:
        reading.set()
        assert may_read.wait(DEADLINE_S)
        return read(memory, granule_bytes)

    monkeypatch.setattr(Memory, "segment_crcs", held)
    watcher = Watcher(harness, request(2, wait_ms=100))
    first = asyncio.ensure_future(watcher.next())
    try:
        await settled(reading.is_set)
        await harness.freeze()
        assert not first.done()
    finally:
        may_read.set()
    assert (await first).block_index == 0
    with pytest.raises(DeadlineExceeded, match="stands still for m1"):
        await watcher.next()


async def test_a_world_that_moves_away_says_where(harness: Harness) -> None:
    await harness.open()
    watcher = Watcher(harness, request(2))
    await watcher.next()
    await harness.freeze()
    await harness.ask(
        "Detach",
        engine_pb2.DetachRequest(session_id="s1", move_id="m1", engine_address="there:1", epoch=2),
    )
    for again in (watcher, Watcher(harness, request(2))):
        with pytest.raises(Conflict, match="there:1 in epoch 2") as moved:
            await again.next()
        assert moved.value.reason == "SESSION_MOVED"
    assert harness.engine.sessions == {}


async def test_a_world_that_is_closed_ends_its_inspection(harness: Harness) -> None:
    await harness.open()
    watcher = Watcher(harness, request(2))
    await watcher.next()
    await harness.ask("CloseWorld", engine_pb2.CloseWorldRequest(session_id="s1", epoch=1))
    with pytest.raises(Conflict) as closed:
        await watcher.next()
    assert closed.value.reason == "SESSION_CLOSED"


async def test_a_call_that_is_given_up_leaves_nothing(harness: Harness) -> None:
    await harness.open()
    watcher = Watcher(harness, request(3))
    await watcher.next()
    with pytest.raises(Conflict, match="inspected already") as second:
        await Watcher(harness, request()).next()
    assert second.value.reason == "INSPECTED_ALREADY"
    watcher.call.cancel()
    await settled(lambda: not harness.engine.inspecting._inspected)
    assert harness.engine.sessions["s1"].held == 0
    again = Watcher(harness, request(2))
    await again.next()
    async with harness.join(0) as player:
        await player.joined()
        await player.play(0, 1)
    assert (await again.next()).block_index == 1


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"session_id": "s2"}, NotFound, None),
        ({"session_id": ""}, InvalidInput, "session_id"),
        ({"boundaries": 1}, InvalidInput, "boundaries"),
        ({"boundaries": 257}, InvalidInput, "boundaries"),
        ({"granule_bytes": 300}, InvalidInput, "granule_bytes"),
        ({"wait_ms": 0}, InvalidInput, "wait_ms"),
        ({"world": engine_pb2.WorldSpec(preset="small")}, InvalidInput, "world.preset"),
        ({"world": None}, InvalidInput, "world.preset"),
    ],
)
async def test_a_bad_request_is_refused_with_its_field(
    harness: Harness, fields: dict[str, Any], kind: type[WorldlineError], field: str | None
) -> None:
    await harness.open()
    with pytest.raises(kind) as refused:
        await Watcher(harness, request(**fields)).next()
    assert refused.value.field == field
    assert not harness.engine.inspecting._inspected
