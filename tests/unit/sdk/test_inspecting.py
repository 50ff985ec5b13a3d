"""Inspecting a session whose engine says what the test has it say."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.state.traces import Window
from worldline.contract import Contract, ServiceClass
from worldline.errors import Conflict, DeadlineExceeded, InvalidInput, Unavailable, WorldlineError
from worldline.rpc.channel import ChannelPool
from worldline.rpc.server import GrpcServer
from worldline.sdk.calls import Caller
from worldline.sdk.inspecting import Inspected, inspect
from worldline.sdk.records import SessionInfo, World
from worldline.state.boundary import Baseline, Boundary
from worldline.state.boundary_codec import boundary_to_proto
from worldline.state.codec import layout_to_proto
from worldline.state.dirty import DirtyTrace
from worldline.state.update_rule import UpdateRule
from worldline.v1 import engine_pb2, engine_pb2_grpc

GRANULE_BYTES = 256


class ScriptedEngine(engine_pb2_grpc.EngineServiceServicer):
    """Streams a trace's first boundaries, then raises."""

    def __init__(self) -> None:
        self.trace = Window(frames=6, step=3, sink=0, rows=2, frame_bytes=256).trace(4, 256)
        self.boundaries = 5
        self.initial_state_known = True
        self.error: WorldlineError | None = None
        self.asked: engine_pb2.InspectWorldRequest | None = None

    async def InspectWorld(  # noqa: N802 - gRPC's name
        self, request: engine_pb2.InspectWorldRequest, context: object
    ) -> AsyncIterator[engine_pb2.InspectWorldResponse]:
        self.asked = request
        begun = engine_pb2.InspectWorldResponse.Begun(
            layout=layout_to_proto(self.trace.layout),
            granule_bytes=GRANULE_BYTES,
            epoch=3,
            initial_state_known=self.initial_state_known,
        )
        yield engine_pb2.InspectWorldResponse(begun=begun)
        for boundary in self.trace.boundaries[: self.boundaries]:
            yield engine_pb2.InspectWorldResponse(boundary=boundary_to_proto(boundary))
        if self.error is not None:
            raise self.error


class Asking:
    """One client of one scripted engine."""

    def __init__(self, engine: ScriptedEngine, address: str, channels: ChannelPool) -> None:
        self.engine = engine
        self.address = address
        self.channels = channels
        self.seen: list[Boundary] = []

    async def __call__(
        self, *, state: str = "live", boundaries: int = 5, wait_s: float = 60.0
    ) -> Inspected:
        info = SessionInfo(
            session_id="s1",
            epoch=3,
            engine_id="e1",
            node_id="n1",
            engine_address="" if state == "suspended" else self.address,
            contract=Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=1000.0),
            world=World("tiny", 7),
            state=state,
            state_bytes=0,
            slot=None,
        )
        return await inspect(
            info,
            boundaries=boundaries,
            granule_bytes=0,
            wait_s=wait_s,
            by_leaf=False,
            on_boundary=self.seen.append,
            caller=Caller("test", 60.0),
            channels=self.channels,
        )


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    engine, server, channels = ScriptedEngine(), GrpcServer(), ChannelPool()
    address = server.bind("127.0.0.1:0")
    add = engine_pb2_grpc.add_EngineServiceServicer_to_server
    server.add(add, engine, "worldline.v1.EngineService")
    await server.start()
    yield Asking(engine, address, channels)
    await channels.close()
    await server.stop(0)


def assert_same(one: DirtyTrace, other: DirtyTrace, count: int) -> None:
    assert len(one.boundaries) == count
    for here, there in zip(one.boundaries, other.boundaries, strict=False):
        assert here.changed.tolist() == there.changed.tolist()
        assert here.differs.tolist() == there.differs.tolist()
        assert (here.block_index, here.at_ms) == (there.block_index, there.at_ms)


async def test_the_trace_arrives_as_it_was_sent(asking: Asking) -> None:
    inspected = await asking()
    assert inspected.stopped is None
    assert inspected.epoch == 3
    assert_same(inspected.inspection.trace, asking.engine.trace, 5)
    assert inspected.inspection.trace.baseline is Baseline.INITIAL_STATE
    assert inspected.inspection.classification.rule is UpdateRule.WINDOW_REWRITE
    assert [each.block_index for each in asking.seen] == [0, 1, 2, 3, 4]
    asked = asking.engine.asked
    assert asked is not None
    assert (asked.session_id, asked.boundaries, asked.wait_ms) == ("s1", 5, 60_000)
    assert (asked.world.preset, asked.world.seed) == ("tiny", 7)


async def test_the_baseline_is_what_the_engine_says(asking: Asking) -> None:
    asking.engine.initial_state_known = False
    inspected = await asking()
    assert inspected.inspection.trace.baseline is Baseline.ZEROS


async def test_what_came_before_the_end_is_reported_with_its_reason(asking: Asking) -> None:
    asking.engine.boundaries = 3
    asking.engine.error = Conflict("s1 moved to there:1", reason="SESSION_MOVED")
    inspected = await asking()
    assert inspected.stopped is not None
    assert inspected.stopped.reason == "SESSION_MOVED"
    assert_same(inspected.inspection.trace, asking.engine.trace, 3)


async def test_one_boundary_shows_nothing(asking: Asking) -> None:
    asking.engine.boundaries = 1
    asking.engine.error = DeadlineExceeded("nobody plays", reason="NO_BOUNDARY")
    with pytest.raises(DeadlineExceeded, match="nobody plays"):
        await asking()
    asking.engine.error = None
    with pytest.raises(Unavailable) as ended:
        await asking()
    assert ended.value.reason == "STREAM_ENDED"


async def test_a_session_that_runs_nowhere_is_refused_before_anybody_is_asked(
    asking: Asking,
) -> None:
    with pytest.raises(Conflict, match="worldline resume s1") as refused:
        await asking(state="suspended")
    assert refused.value.reason == "SESSION_NOT_RUNNING"
    assert asking.engine.asked is None


@pytest.mark.parametrize(
    ("field", "value"), [("boundaries", 1), ("boundaries", 257), ("wait_s", 0.0), ("wait_s", 1e6)]
)
async def test_a_number_out_of_range_is_named(asking: Asking, field: str, value: float) -> None:
    with pytest.raises(InvalidInput) as refused:
        await asking(**{field: value})  # type: ignore[arg-type]
    assert refused.value.field == field
