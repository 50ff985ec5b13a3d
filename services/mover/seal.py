"""Seal and answer: the source's last message on the wire, and the target's reply to it.

They travel as the chunks do, because a world stands still until the answer is there and a message
over gRPC takes longer than the digests it carries. Everything that takes longer to make, the
receipt, follows over gRPC.

Seal, little-endian: bytes sent, length of the go, the go (what was frozen) padded to what both ends
know it can have at most, header (CRC of what the bytes mean), one CRC per segment, and the CRC of
all that; without verification, no header and no segments. Answer: one word.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from services.mover.chunking import CHUNKS_MAX
from services.mover.offer import Frozen, frozen_from_proto, frozen_to_proto
from worldline.errors import InvalidInput
from worldline.state.digest import GRANULE_BYTES, crc64
from worldline.state.layout import Layout
from worldline.state.segment_digests import SegmentDigests
from worldline.state.segments import segments_of
from worldline.v1 import mover_pb2

#: Numbers of the two messages where chunks have their index, above every chunk's.
SEAL_INDEX = CHUNKS_MAX
ANSWER_INDEX = CHUNKS_MAX + 1
ANSWER_BYTES = 8
_VERIFIED = 1
_PROMOTED = 2
_WORD = struct.Struct("<Q")
#: Bytes sent, and the length of the go.
_HEAD = struct.Struct("<QQ")
#: By which a scalar's value may outgrow that of the block it was ordered with, beside doubling.
_SCALAR_SLACK_BYTES = 32


@dataclass(frozen=True, slots=True)
class Seal:
    """What the source says that it sent."""

    sent_bytes: int
    frozen: Frozen
    #: None when verification is off.
    digests: SegmentDigests | None


@dataclass(frozen=True, slots=True)
class SealFormat:
    """How long the parts of a seal are; both ends know from the layout that was offered."""

    layout: Layout
    verification_on: bool
    go_bytes: int
    size_bytes: int

    @classmethod
    def of(cls, layout: Layout, *, verification_on: bool) -> SealFormat:
        """Of a transfer of that layout, whose scalars may still change."""
        ordered_bytes = frozen_to_proto(Frozen(0, layout)).ByteSize()
        go_bytes = 2 * ordered_bytes + _SCALAR_SLACK_BYTES * (len(layout.scalars) + 1)
        size_bytes = _HEAD.size + go_bytes + _WORD.size
        if verification_on:
            size_bytes += _WORD.size * (1 + segments_of(layout, GRANULE_BYTES).count)
        return cls(layout, verification_on, go_bytes, size_bytes)

    def pack(self, seal: Seal) -> memoryview:
        """The message.

        Raises:
            InvalidInput: the scalars have grown beyond what the target has room for.
        """
        go = frozen_to_proto(seal.frozen).SerializeToString()
        if len(go) > self.go_bytes:
            raise InvalidInput(
                f"the frozen scalars take {len(go)} bytes, and those of the order left room for "
                f"{self.go_bytes}: order with scalars as long as they may be",
                field="go.scalars",
            )
        body = _HEAD.pack(seal.sent_bytes, len(go)) + go.ljust(self.go_bytes, b"\0")
        if seal.digests is not None:
            body += _WORD.pack(seal.digests.header) + seal.digests.crcs.astype("<u8").tobytes()
        return memoryview(bytearray(body + _WORD.pack(crc64(body))))

    def unpack(self, message: memoryview) -> Seal:
        """Parse a message of `size_bytes`.

        Raises:
            InvalidInput: it is not what the source packed, or not of this layout.
        """
        body, check = message[: -_WORD.size], message[-_WORD.size :]
        if message.nbytes != self.size_bytes or _WORD.unpack(check)[0] != crc64(body):
            raise InvalidInput("the seal does not agree with itself", field="seal")
        sent_bytes, go_bytes = _HEAD.unpack(body[: _HEAD.size])
        behind = _HEAD.size + self.go_bytes
        frozen = self._frozen(body[_HEAD.size : behind], go_bytes)
        if not self.verification_on:
            return Seal(sent_bytes, frozen, None)
        header: int = _WORD.unpack(body[behind : behind + _WORD.size])[0]
        crcs = np.frombuffer(body[behind + _WORD.size :], "<u8").astype(np.uint64)
        return Seal(sent_bytes, frozen, SegmentDigests(crcs, header))

    def _frozen(self, padded: memoryview, go_bytes: int) -> Frozen:
        if go_bytes > self.go_bytes:
            raise InvalidInput(f"a go of {go_bytes} bytes has no room in its seal", field="seal")
        try:
            go = mover_pb2.PushGo.FromString(bytes(padded[:go_bytes]))
        except DecodeError as error:
            raise InvalidInput(f"the seal has no go: {error}", field="seal") from error
        return frozen_from_proto(go, self.layout)


def pack_answer(*, promoted: bool) -> memoryview:
    """Everything landed as sealed, and the slot was promoted, or not yet."""
    return memoryview(bytearray(_WORD.pack(_VERIFIED | (_PROMOTED if promoted else 0))))


def is_answer(message: memoryview) -> bool:
    """Whether these bytes say that everything landed as sealed."""
    return _WORD.unpack(message)[0] in (_VERIFIED, _VERIFIED | _PROMOTED)
