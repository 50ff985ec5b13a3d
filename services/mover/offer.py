"""Offer, grant, push request: the wire's messages, parsed once into values that hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.mover.blanks import NO_BLANKS, Blanks, blanks_from_proto, blanks_to_proto
from services.mover.chunking import CHUNK_BYTES_MAX, WINDOW_CHUNKS_MAX, ChunkPlan
from services.mover.slots import SlotRef, ref_from_proto
from services.mover.transfer import Verification
from worldline.errors import InvalidInput, VersionSkew
from worldline.fields import enum_member, identifier, non_negative, whole
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.state.codec import (
    layout_from_proto,
    layout_to_proto,
    layout_with_scalars,
    scalars_to_proto,
)
from worldline.state.digest import GRANULE_BYTES
from worldline.state.layout import Layout
from worldline.state.manifest import CRC64NVME
from worldline.ticket import DURATION_MS_MAX, SignedTicket, ticket_from_proto, ticket_to_proto
from worldline.v1 import move_pb2, mover_pb2

WORKER_ADDRESS_BYTES_MAX = 65_536
_CHUNK_INDEX_MASK = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """How an extent travels; both ends make the same plan from it."""

    verification: Verification
    chunk_bytes: int
    window_chunks: int

    def within(self, largest_chunk_bytes: int | None) -> Shape:
        """The same with chunks no larger than that, where there is a limit."""
        if largest_chunk_bytes is None or self.chunk_bytes <= largest_chunk_bytes:
            return self
        return replace(self, chunk_bytes=largest_chunk_bytes)

    def plan(self, layout: Layout) -> ChunkPlan:
        """The chunks of a layout's extent."""
        tapered = self.verification is Verification.TAIL
        return ChunkPlan(layout.extent_bytes, self.chunk_bytes, GRANULE_BYTES, tapered)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source wants to land, under which permission. The layout's scalars are not yet final.

    `promote`: the target may promote the slot as soon as what landed is verified.
    """

    ticket: SignedTicket
    reservation_id: str
    session_id: str
    epoch: int
    layout: Layout
    shape: Shape
    worker_address: bytes
    #: Where the source's slot rests.
    device: str = "cpu"
    promote: bool = False
    #: How long the source has waited for its egress.
    waited_s: float = 0.0
    #: What was zeros when the source looked.
    blanks: Blanks = NO_BLANKS


@dataclass(frozen=True, slots=True)
class Grant:
    """The wire is the source's: for `lease_ms` until its go, and again from then on."""

    worker_address: bytes
    tag_base: int
    #: At most the chunks and the window that were offered.
    shape: Shape
    lease_ms: int
    #: Where the target's slot rests.
    device: str = "cpu"
    #: What stays behind: what was offered, or nothing.
    blanks: Blanks = NO_BLANKS


@dataclass(frozen=True, slots=True)
class PushOrder:
    """What placement asks a source mover to push. `slot` is None for probes.

    Zero for chunk or window and None for verification leave the choice to the mover.
    `probe_device` is where a probe's bytes rest, empty for the node's first device.
    """

    ticket: SignedTicket
    session_id: str
    epoch: int
    layout: Layout
    slot: SlotRef | None
    reservation_id: str
    target_mover_address: str
    verification: Verification | None
    chunk_bytes: int
    window_chunks: int
    promote: bool = False
    probe_device: str = ""


@dataclass(frozen=True, slots=True)
class Frozen:
    """What the go says: where the world stands, with the layout's scalars of that block."""

    block_index: int
    layout: Layout


def offer_from_proto(message: mover_pb2.LandOffer) -> Offer:
    """Parse; the version first, because another version may mean another message.

    Raises:
        VersionSkew: another protocol version; nothing else was looked at.
        InvalidInput: a field is malformed.
    """
    if message.protocol_version != PROTOCOL_VERSION:
        raise VersionSkew(
            f"the source speaks protocol {message.protocol_version}, this mover speaks "
            f"{PROTOCOL_VERSION}",
            field="protocol_version",
        )
    digests = ("algorithm", CRC64NVME), ("granule_bytes", GRANULE_BYTES)
    for name, spoken in digests:
        if getattr(message, name) != spoken:
            raise InvalidInput(
                f"{name} is {getattr(message, name)!r}, this mover digests with {spoken!r}",
                field=name,
            )
    layout = layout_from_proto(message.layout)
    shape = Shape(
        verification=enum_member(Verification, message.verification, "verification"),
        chunk_bytes=message.chunk_bytes,
        window_chunks=message.window_chunks,
    )
    blanks = blanks_from_proto(message.blanks, layout)
    if blanks.runs and not shape.verification.on:
        raise InvalidInput("without verification nothing proves a blank", field="blanks")
    return Offer(
        ticket=ticket_from_proto(message.ticket),
        reservation_id=identifier(message.reservation_id, "reservation_id"),
        session_id=identifier(message.session_id, "session_id"),
        epoch=message.epoch,
        layout=layout,
        shape=checked_shape(layout, shape),
        worker_address=_worker_address(message.worker_address),
        device=identifier(message.device, "device"),
        promote=message.promote,
        waited_s=non_negative(message.waited_ms, "waited_ms", at_most=DURATION_MS_MAX) / 1e3,
        blanks=blanks,
    )


def offer_to_proto(offer: Offer) -> mover_pb2.LandOffer:
    """The wire form, under this build's protocol version."""
    return mover_pb2.LandOffer(
        protocol_version=PROTOCOL_VERSION,
        ticket=ticket_to_proto(offer.ticket),
        reservation_id=offer.reservation_id,
        session_id=offer.session_id,
        epoch=offer.epoch,
        layout=layout_to_proto(offer.layout),
        verification=move_pb2.Verification.Name(offer.shape.verification),
        chunk_bytes=offer.shape.chunk_bytes,
        window_chunks=offer.shape.window_chunks,
        worker_address=offer.worker_address,
        device=offer.device,
        promote=offer.promote,
        algorithm=CRC64NVME,
        granule_bytes=GRANULE_BYTES,
        waited_ms=offer.waited_s * 1e3,
        blanks=blanks_to_proto(offer.blanks),
    )


def grant_from_proto(message: mover_pb2.LandGrant, offer: Offer) -> Grant:
    """Parse what the target answered; it may shrink chunks and window, not enlarge them.

    Raises:
        InvalidInput: a field is malformed, or more than was offered.
    """
    offered = offer.shape
    shape = Shape(
        verification=offered.verification,
        chunk_bytes=whole(
            message.chunk_bytes, "grant.chunk_bytes", at_least=1, at_most=offered.chunk_bytes
        ),
        window_chunks=whole(
            message.window_chunks, "grant.window_chunks", at_least=1, at_most=offered.window_chunks
        ),
    )
    if message.tag_base & _CHUNK_INDEX_MASK:
        raise InvalidInput("the tag base leaves no room for chunks", field="grant.tag_base")
    return Grant(
        worker_address=_worker_address(message.worker_address),
        tag_base=message.tag_base,
        shape=checked_shape(offer.layout, shape),
        lease_ms=whole(message.lease_ms, "grant.lease_ms", at_least=1, at_most=DURATION_MS_MAX),
        device=identifier(message.device, "grant.device"),
        blanks=offer.blanks if message.blanks_taken else NO_BLANKS,
    )


def order_from_proto(message: mover_pb2.PushOrder) -> PushOrder:
    """Parse.

    Raises:
        InvalidInput: a field is malformed.
    """
    has_slot = message.HasField("source_slot") and message.source_slot.node_id
    chosen = message.verification != move_pb2.VERIFICATION_UNSPECIFIED
    return PushOrder(
        ticket=ticket_from_proto(message.ticket),
        session_id=identifier(message.session_id, "session_id"),
        epoch=message.epoch,
        layout=layout_from_proto(message.layout),
        slot=ref_from_proto(message.source_slot, "source_slot") if has_slot else None,
        reservation_id=identifier(message.reservation_id, "reservation_id"),
        target_mover_address=identifier(message.target_mover_address, "target_mover_address"),
        verification=(
            enum_member(Verification, message.verification, "verification") if chosen else None
        ),
        chunk_bytes=message.chunk_bytes,
        window_chunks=message.window_chunks,
        promote=message.promote,
        probe_device=message.probe_device,
    )


def frozen_from_proto(message: mover_pb2.PushGo, layout: Layout) -> Frozen:
    """Parse a go.

    Raises:
        InvalidInput: its scalars are not those of the layout that was ordered.
    """
    return Frozen(message.block_index, layout_with_scalars(layout, message.scalars))


def frozen_to_proto(frozen: Frozen) -> mover_pb2.PushGo:
    """The wire form."""
    return mover_pb2.PushGo(block_index=frozen.block_index, scalars=scalars_to_proto(frozen.layout))


def checked_shape(layout: Layout, shape: Shape) -> Shape:
    """The shape, if the extent can travel in it.

    Raises:
        InvalidInput: out of range, or a chunk that is not a whole number of granules.
    """
    whole(shape.chunk_bytes, "chunk_bytes", at_least=GRANULE_BYTES, at_most=CHUNK_BYTES_MAX)
    shape.plan(layout)
    whole(shape.window_chunks, "window_chunks", at_least=1, at_most=WINDOW_CHUNKS_MAX)
    return shape


def _worker_address(address: bytes) -> bytes:
    if not 0 < len(address) <= WORKER_ADDRESS_BYTES_MAX:
        raise InvalidInput(
            f"a worker address of {len(address)} bytes is none", field="worker_address"
        )
    return address
