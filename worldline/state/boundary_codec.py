"""Boundary codec: what an engine streams of an inspection, as messages and back."""

from __future__ import annotations

from worldline.fields import non_negative, whole
from worldline.state.boundary import Boundary, pack_flags, unpack_flags
from worldline.v1 import engine_pb2


def boundary_to_proto(boundary: Boundary) -> engine_pb2.InspectWorldResponse.Boundary:
    """Two flags a segment."""
    return engine_pb2.InspectWorldResponse.Boundary(
        block_index=boundary.block_index,
        at_ms=boundary.at_ms,
        read_ms=boundary.read_ms,
        changed=pack_flags(boundary.changed),
        differs=pack_flags(boundary.differs),
    )


def boundary_from_proto(
    message: engine_pb2.InspectWorldResponse.Boundary, segment_count: int
) -> Boundary:
    """Of a layout of so many segments.

    Raises:
        InvalidInput: flags of another number of segments, or a time that is none.
    """
    return Boundary(
        block_index=whole(message.block_index, "boundary.block_index"),
        at_ms=non_negative(message.at_ms, "boundary.at_ms"),
        read_ms=non_negative(message.read_ms, "boundary.read_ms"),
        changed=unpack_flags(message.changed, segment_count, "boundary.changed"),
        differs=unpack_flags(message.differs, segment_count, "boundary.differs"),
    )
