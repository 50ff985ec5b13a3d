"""Go: the source's first message on the wire, what was frozen, behind the chunks that it posts.

It travels as the chunks do, because a message over gRPC takes longer than a small state; and early,
because reading it takes time that the bytes are on their way in.

Little-endian: length, the serialized `PushGo` padded to what both ends know it can have at most,
and the CRC of all that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from services.mover.chunking import CHUNKS_MAX
from services.mover.offer import Frozen, frozen_from_proto, frozen_to_proto
from worldline.errors import InvalidInput
from worldline.state.digest import crc64
from worldline.state.layout import Layout
from worldline.v1 import mover_pb2

#: Its number where chunks have their index; the seal and its answer have the two before.
GO_INDEX = CHUNKS_MAX + 2
_WORD = struct.Struct("<Q")
#: By which a scalar's value may outgrow that of the block it was ordered with, beside doubling.
_SCALAR_SLACK_BYTES = 32


@dataclass(frozen=True, slots=True)
class GoFormat:
    """How long a go is; both ends know from the layout that was offered."""

    layout: Layout
    #: Of the go itself, at most.
    go_bytes: int

    @classmethod
    def of(cls, layout: Layout) -> GoFormat:
        """Of a transfer of that layout, whose scalars may still change."""
        ordered_bytes = frozen_to_proto(Frozen(0, layout)).ByteSize()
        slack_bytes = _SCALAR_SLACK_BYTES * (len(layout.scalars) + 1)
        return cls(layout, 2 * ordered_bytes + slack_bytes)

    @property
    def size_bytes(self) -> int:
        """Of the message."""
        return self.go_bytes + 2 * _WORD.size

    def pack(self, frozen: Frozen) -> memoryview:
        """The message.

        Raises:
            InvalidInput: the scalars have grown beyond what the target has room for.
        """
        go = frozen_to_proto(frozen).SerializeToString()
        if len(go) > self.go_bytes:
            raise InvalidInput(
                f"the frozen scalars take {len(go)} bytes, and those of the order left room for "
                f"{self.go_bytes}: order with scalars as long as they may be",
                field="go.scalars",
            )
        body = _WORD.pack(len(go)) + go.ljust(self.go_bytes, b"\0")
        return memoryview(bytearray(body + _WORD.pack(crc64(body))))

    def unpack(self, message: memoryview) -> Frozen:
        """Parse a message of `size_bytes`.

        Raises:
            InvalidInput: it is not what the source packed, or not of this layout.
        """
        body, check = message[: -_WORD.size], message[-_WORD.size :]
        if message.nbytes != self.size_bytes or _WORD.unpack(check)[0] != crc64(body):
            raise InvalidInput("the go does not agree with itself", field="go")
        go_bytes: int = _WORD.unpack(body[: _WORD.size])[0]
        if go_bytes > self.go_bytes:
            raise InvalidInput(f"a go of {go_bytes} bytes has no room in its message", field="go")
        try:
            go = mover_pb2.PushGo.FromString(bytes(body[_WORD.size : _WORD.size + go_bytes]))
        except DecodeError as error:
            raise InvalidInput(f"the go cannot be parsed: {error}", field="go") from error
        return frozen_from_proto(go, self.layout)
