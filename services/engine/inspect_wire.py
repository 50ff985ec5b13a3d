"""Inspect wire: what an inspection yields, as messages."""

from __future__ import annotations

from services.engine.inspecting import Begun
from worldline.state.boundary import Baseline, Boundary
from worldline.state.boundary_codec import boundary_to_proto
from worldline.state.codec import layout_to_proto
from worldline.v1 import engine_pb2


def inspected_to_proto(inspected: Begun | Boundary) -> engine_pb2.InspectWorldResponse:
    """One message of the stream."""
    if isinstance(inspected, Boundary):
        return engine_pb2.InspectWorldResponse(boundary=boundary_to_proto(inspected))
    return engine_pb2.InspectWorldResponse(
        begun=engine_pb2.InspectWorldResponse.Begun(
            layout=layout_to_proto(inspected.layout),
            granule_bytes=inspected.granule_bytes,
            epoch=inspected.epoch,
            initial_state_known=inspected.baseline is Baseline.INITIAL_STATE,
        )
    )
