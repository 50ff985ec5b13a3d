"""Park order: what a Park call asks for, parsed once; and the figures of a crossing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.mover.slots import SlotRef, ref_from_proto
from worldline.fields import enum_member
from worldline.park import ParkKind, park_id
from worldline.state.codec import manifest_from_proto
from worldline.state.manifest import Manifest
from worldline.v1 import park_pb2


@dataclass(frozen=True, slots=True)
class ParkOrder:
    """Park this frozen state under that name. The manifest has no digests yet."""

    park_id: str
    manifest: Manifest
    slot: SlotRef
    kind: ParkKind


@dataclass(frozen=True, slots=True)
class ParkFigures:
    """What a crossing took; times in milliseconds."""

    copied_bytes: int
    copy_ms: float
    verify_ms: float
    direct_io: bool = False

    def to_proto(self) -> park_pb2.ParkStats:
        """The wire form."""
        return park_pb2.ParkStats(
            copied_bytes=self.copied_bytes,
            copy_ms=self.copy_ms,
            verify_ms=self.verify_ms,
            direct_io=self.direct_io,
        )


def order_from_proto(request: park_pb2.ParkRequest) -> ParkOrder:
    """Parse once, at the edge.

    Raises:
        InvalidInput: with the field.
    """
    return ParkOrder(
        park_id=park_id(request.park_id),
        # Digests are computed here and nowhere else.
        manifest=replace(manifest_from_proto(request.manifest), digests=None),
        slot=ref_from_proto(request.slot, "slot"),
        kind=enum_member(ParkKind, request.kind, "kind"),
    )
