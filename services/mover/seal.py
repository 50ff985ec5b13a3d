"""Seal and answer: the source's last message on the wire, and the target's reply to it.

They travel as the chunks do, because a world stands still until the answer is there and a message
over gRPC takes longer than the digests it carries. Everything that takes longer to make, the
receipt, follows over gRPC.

Seal, little-endian: bytes sent, header (CRC of what the bytes mean), one CRC per segment, and the
CRC of all that; without verification, no header and no segments. Answer: one word.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from services.mover.chunking import CHUNKS_MAX
from worldline.errors import InvalidInput
from worldline.state.digest import crc64
from worldline.state.segment_digests import SegmentDigests

#: Numbers of the two messages where chunks have their index, above every chunk's.
SEAL_INDEX = CHUNKS_MAX
ANSWER_INDEX = CHUNKS_MAX + 1
ANSWER_BYTES = 8
_VERIFIED = 1
_PROMOTED = 2
_WORD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Seal:
    """What the source says that it sent."""

    sent_bytes: int
    #: None when verification is off.
    digests: SegmentDigests | None


def seal_bytes(segment_count: int | None) -> int:
    """Length of a seal over so many segments; None when verification is off."""
    return 16 if segment_count is None else 24 + 8 * segment_count


def pack_seal(seal: Seal) -> memoryview:
    """The message."""
    body = _WORD.pack(seal.sent_bytes)
    if seal.digests is not None:
        body += _WORD.pack(seal.digests.header) + seal.digests.crcs.astype("<u8").tobytes()
    return memoryview(bytearray(body + _WORD.pack(crc64(body))))


def unpack_seal(message: memoryview, *, verification_on: bool) -> Seal:
    """Parse a message of exactly the expected length.

    Raises:
        InvalidInput: it is not what the source packed.
    """
    body, check = message[:-8], message[-8:]
    if _WORD.unpack(check)[0] != crc64(body):
        raise InvalidInput("the seal does not agree with itself", field="seal")
    sent_bytes: int = _WORD.unpack(body[:8])[0]
    if not verification_on:
        return Seal(sent_bytes, None)
    header: int = _WORD.unpack(body[8:16])[0]
    crcs = np.frombuffer(body[16:], "<u8").astype(np.uint64)
    return Seal(sent_bytes, SegmentDigests(crcs, header))


def pack_answer(*, promoted: bool) -> memoryview:
    """Everything landed as sealed, and the slot was promoted, or not yet."""
    return memoryview(bytearray(_WORD.pack(_VERIFIED | (_PROMOTED if promoted else 0))))


def is_answer(message: memoryview) -> bool:
    """Whether these bytes say that everything landed as sealed."""
    return _WORD.unpack(message)[0] in (_VERIFIED, _VERIFIED | _PROMOTED)
