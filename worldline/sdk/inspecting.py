"""Inspecting: which parts of its state a live session writes, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worldline.errors import Conflict, Unavailable, WorldlineError
from worldline.fields import positive, whole
from worldline.rpc.channel import ChannelPool, mapped_errors
from worldline.sdk.calls import Caller
from worldline.sdk.records import SessionInfo
from worldline.state.boundary import Baseline, Boundary
from worldline.state.boundary_codec import boundary_from_proto
from worldline.state.codec import layout_from_proto
from worldline.state.dirty import DirtyTrace
from worldline.state.inspection import Inspection, inspection_of
from worldline.state.segments import segments_of
from worldline.v1 import engine_pb2, engine_pb2_grpc

#: Told of each boundary when it was reached.
OnBoundary = Callable[[Boundary], None]

BOUNDARIES_MAX = 256
_WAIT_S_MAX = 600.0
_GRANULE_BYTES_MAX = (1 << 32) - 1
#: What making the first state anew may take before the first boundary, beside a call's usual time.
_BEGIN_S = 60.0
#: Boundaries that show anything: what one block did.
_ENOUGH = 2


@dataclass(frozen=True, slots=True, eq=False)
class Inspected:
    """What an inspection showed; `stopped` is why it ended before its last boundary, if it did."""

    session: SessionInfo
    #: Of the session, while it was looked at.
    epoch: int
    inspection: Inspection
    stopped: WorldlineError | None = None


async def inspect(
    info: SessionInfo,
    *,
    boundaries: int,
    granule_bytes: int,
    wait_s: float,
    by_leaf: bool,
    on_boundary: OnBoundary | None,
    caller: Caller,
    channels: ChannelPool,
) -> Inspected:
    """Ask the session's engine; see `Client.inspect`."""
    request = engine_pb2.InspectWorldRequest(
        session_id=info.session_id,
        boundaries=whole(boundaries, "boundaries", at_least=_ENOUGH, at_most=BOUNDARIES_MAX),
        granule_bytes=whole(granule_bytes, "granule_bytes", at_most=_GRANULE_BYTES_MAX),
        wait_ms=max(1, round(1e3 * positive(wait_s, "wait_s", at_most=_WAIT_S_MAX))),
        world=engine_pb2.WorldSpec(preset=info.world.preset, seed=info.world.seed),
    )
    stub = channels.stub(engine_pb2_grpc.EngineServiceStub, _engine_of(info))
    reading = _Reading(on_boundary)
    stopped: WorldlineError | None = None
    call = stub.InspectWorld(
        request,
        timeout=caller.timeout_s + _BEGIN_S + boundaries * wait_s,
        metadata=caller.metadata(),
    )
    try:
        async with mapped_errors():
            async for message in call:
                reading.take(message)
    except WorldlineError as error:
        if len(reading.boundaries) < _ENOUGH:
            raise
        stopped = error
    finally:
        call.cancel()
    return Inspected(info, reading.epoch, inspection_of(reading.trace(), by_leaf=by_leaf), stopped)


class _Reading:
    """The messages of one inspection so far."""

    def __init__(self, on_boundary: OnBoundary | None) -> None:
        self._on_boundary = on_boundary
        self._begun: engine_pb2.InspectWorldResponse.Begun | None = None
        self._segment_count = 0
        self.epoch = 0
        self.boundaries: list[Boundary] = []

    def take(self, message: engine_pb2.InspectWorldResponse) -> None:
        """The next message of the stream."""
        if message.WhichOneof("event") == "begun":
            self._begun, self.epoch = message.begun, message.begun.epoch
            layout = layout_from_proto(message.begun.layout)
            self._segment_count = segments_of(layout, message.begun.granule_bytes).count
            return
        boundary = boundary_from_proto(message.boundary, self._segment_count)
        self.boundaries.append(boundary)
        if self._on_boundary is not None:
            self._on_boundary(boundary)

    def trace(self) -> DirtyTrace:
        """All that came."""
        if self._begun is None or len(self.boundaries) < _ENOUGH:
            raise Unavailable("the engine ended the inspection early", reason="STREAM_ENDED")
        known = self._begun.initial_state_known
        return DirtyTrace(
            layout=layout_from_proto(self._begun.layout),
            granule_bytes=self._begun.granule_bytes,
            baseline=Baseline.INITIAL_STATE if known else Baseline.ZEROS,
            boundaries=tuple(self.boundaries),
        )


def _engine_of(info: SessionInfo) -> str:
    """Where it runs.

    Raises:
        Conflict: nowhere.
    """
    if info.engine_address and info.state not in ("suspended", "resuming", "lost", "closed"):
        return info.engine_address
    way_out = {
        "suspended": f"resume it first (`worldline resume {info.session_id}`)",
        "resuming": "inspect it in a moment",
    }.get(info.state, "there is nothing to look at")
    raise Conflict(
        f"session {info.session_id} is {info.state} and runs nowhere; {way_out}",
        reason="SESSION_NOT_RUNNING",
        field="session_id",
    )
