"""Offer, grant, push request: the wire's messages, parsed once into values that hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from services.mover.chunking import CHUNK_BYTES_MAX, WINDOW_CHUNKS_MAX, ChunkPlan
from services.mover.slots import SlotRef, ref_from_proto
from worldline.errors import InvalidInput, VersionSkew
from worldline.fields import enum_member, identifier, whole
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.state.codec import manifest_from_proto
from worldline.state.digest import GRANULE_BYTES
from worldline.state.manifest import Manifest
from worldline.ticket import SignedTicket, ticket_from_proto
from worldline.v1 import mover_pb2

WORKER_ADDRESS_BYTES_MAX = 65_536
_CHUNK_INDEX_MASK = (1 << 24) - 1


class Verification(IntEnum):
    """When digests are computed; numbers as in move.proto."""

    PIPELINED = 1
    OFF = 2


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source wants to land, under which permission."""

    ticket: SignedTicket
    reservation_id: str
    manifest: Manifest
    verification: Verification
    chunk_bytes: int
    window_chunks: int
    worker_address: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """The wire is the source's, for `lease_ms`."""

    worker_address: bytes
    tag_base: int
    chunk_bytes: int
    window_chunks: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class PushOrder:
    """What placement asks a source mover to push. `slot` is None for probes."""

    ticket: SignedTicket
    manifest: Manifest
    slot: SlotRef | None
    reservation_id: str
    target_mover_address: str
    verification: Verification
    chunk_bytes: int
    window_chunks: int


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
    manifest = manifest_from_proto(message.manifest)
    chunk_bytes, window_chunks = transfer_shape(
        manifest.layout.extent_bytes, message.chunk_bytes, message.window_chunks
    )
    return Offer(
        ticket=ticket_from_proto(message.ticket),
        reservation_id=identifier(message.reservation_id, "reservation_id"),
        manifest=manifest,
        verification=enum_member(Verification, message.verification, "verification"),
        chunk_bytes=chunk_bytes,
        window_chunks=window_chunks,
        worker_address=_worker_address(message.worker_address),
    )


def grant_from_proto(message: mover_pb2.LandGrant, offer: Offer) -> Grant:
    """Parse what the target answered; it may shrink the window, not change the chunks.

    Raises:
        InvalidInput: a field is malformed, or the chunks are not those offered.
    """
    if message.chunk_bytes != offer.chunk_bytes:
        raise InvalidInput(
            f"granted chunks of {message.chunk_bytes} bytes, offered {offer.chunk_bytes}",
            field="grant.chunk_bytes",
        )
    if message.tag_base & _CHUNK_INDEX_MASK:
        raise InvalidInput("the tag base leaves no room for chunks", field="grant.tag_base")
    return Grant(
        worker_address=_worker_address(message.worker_address),
        tag_base=message.tag_base,
        chunk_bytes=message.chunk_bytes,
        window_chunks=whole(
            message.window_chunks, "grant.window_chunks", at_least=1, at_most=offer.window_chunks
        ),
        lease_ms=whole(message.lease_ms, "grant.lease_ms", at_least=1),
    )


def push_from_proto(
    message: mover_pb2.PushRequest, *, chunk_bytes_default: int, window_chunks_default: int
) -> PushOrder:
    """Parse.

    Raises:
        InvalidInput: a field is malformed.
    """
    manifest = manifest_from_proto(message.manifest)
    chunk_bytes, window_chunks = transfer_shape(
        manifest.layout.extent_bytes,
        message.chunk_bytes or chunk_bytes_default,
        message.window_chunks or window_chunks_default,
    )
    has_slot = message.HasField("source_slot") and message.source_slot.node_id
    return PushOrder(
        ticket=ticket_from_proto(message.ticket),
        manifest=manifest,
        slot=ref_from_proto(message.source_slot, "source_slot") if has_slot else None,
        reservation_id=identifier(message.reservation_id, "reservation_id"),
        target_mover_address=identifier(message.target_mover_address, "target_mover_address"),
        verification=enum_member(Verification, message.verification, "verification"),
        chunk_bytes=chunk_bytes,
        window_chunks=window_chunks,
    )


def transfer_shape(extent_bytes: int, chunk_bytes: int, window_chunks: int) -> tuple[int, int]:
    """Chunk and window, checked against the extent.

    Raises:
        InvalidInput: out of range, or a chunk that is not a whole number of granules.
    """
    whole(chunk_bytes, "chunk_bytes", at_least=GRANULE_BYTES, at_most=CHUNK_BYTES_MAX)
    ChunkPlan(extent_bytes, chunk_bytes, GRANULE_BYTES)
    whole(window_chunks, "window_chunks", at_least=1, at_most=WINDOW_CHUNKS_MAX)
    return chunk_bytes, window_chunks


def _worker_address(address: bytes) -> bytes:
    if not 0 < len(address) <= WORKER_ADDRESS_BYTES_MAX:
        raise InvalidInput(
            f"a worker address of {len(address)} bytes is none", field="worker_address"
        )
    return address
