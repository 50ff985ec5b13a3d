"""Rendezvous: the two small messages around bytes that a neighbour reads in place.

The sender offers: either where the bytes lie in one of its memory files, or that they follow as a
message of their own. The receiver of the former answers, once it has read them, that it is done, or
that it cannot map the file and wants them sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from services.mover.transport.peeraddress import MemoryFile
from worldline.errors import TransferFailed

_MAGIC = b"WLO1"
_OFFER = struct.Struct("<4sxxxxqQQQQQ")
#: What stands in place of a descriptor where the bytes follow.
_FOLLOWS = -1
OFFER_BYTES = _OFFER.size
ANSWER_BYTES = 1
DONE = b"d"
SEND = b"s"
_ANSWER_BIT = 1 << 63


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes [offset, offset + size) of a memory file."""

    file: MemoryFile
    offset_bytes: int
    size_bytes: int


def offer(place: Place | None, size_bytes: int) -> bytes:
    """The message that announces `size_bytes`; without a place they follow."""
    if place is None:
        return _OFFER.pack(_MAGIC, _FOLLOWS, 0, 0, 0, 0, size_bytes)
    file = place.file
    return _OFFER.pack(
        *(_MAGIC, file.number, file.file_device, file.inode, file.size_bytes),
        *(place.offset_bytes, size_bytes),
    )


def place_of(message: bytes | bytearray) -> Place | None:
    """Where the offered bytes lie; None where they follow.

    Raises:
        TransferFailed: it is no offer, or names bytes beyond the end of the file.
    """
    magic, number, file_device, inode, file_bytes, offset_bytes, size_bytes = _OFFER.unpack(message)
    if magic == _MAGIC and number == _FOLLOWS:
        return None
    # Whoever read beyond the end of the file would die of it.
    if magic != _MAGIC or number < 0 or offset_bytes + size_bytes > file_bytes:
        raise TransferFailed("what came is no offer of bytes", reason="PROTOCOL_BROKEN")
    return Place(MemoryFile(number, file_device, inode, file_bytes), offset_bytes, size_bytes)


def answer_tag(tag: int) -> int:
    """Under which an offer is answered: the same worker may receive under the tag itself."""
    return tag ^ _ANSWER_BIT
