"""Inspection order: which world is to be looked at, at how many boundaries and how finely."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.parse import WorldSpec, spec_from_proto
from worldline.fields import identifier, whole
from worldline.v1 import engine_pb2

#: Boundaries of one inspection.
BOUNDARIES_MAX = 256
#: Longest wait for one boundary.
WAIT_MS_MAX = 600_000
_GRANULE_BYTES_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class InspectOrder:
    """What one call asks for; `granule_bytes` 0: what suits the state.

    Raises:
        InvalidInput: a field is out of range. Whether the granule suits is the layout's to say.
    """

    session_id: str
    boundaries: int
    granule_bytes: int
    wait_s: float
    world: WorldSpec

    def __post_init__(self) -> None:
        identifier(self.session_id, "session_id")
        whole(self.boundaries, "boundaries", at_least=2, at_most=BOUNDARIES_MAX)
        whole(self.granule_bytes, "granule_bytes", at_most=_GRANULE_BYTES_MAX)


def inspect_order_from_proto(message: engine_pb2.InspectWorldRequest) -> InspectOrder:
    """Parse once, at the edge.

    Raises:
        InvalidInput: with the field.
    """
    wait_ms = whole(message.wait_ms, "wait_ms", at_least=1, at_most=WAIT_MS_MAX)
    return InspectOrder(
        session_id=message.session_id,
        boundaries=message.boundaries,
        granule_bytes=message.granule_bytes,
        wait_s=wait_ms / 1e3,
        world=spec_from_proto(message.world),
    )
