"""Park file: a state in a file, past the page cache where the file system allows, and its sidecar.

A parked copy is a directory with two files: `state` holds the bytes of the slot's extent, padded
with zeros to whole blocks; `manifest` says whose they are, how they lie and what their digests
are. The sidecar is: 16 bytes of magic and version, the length of the message (8 bytes, little
endian), a serialized `ParkedFile`, and the SHA-256 of everything before.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from worldline.errors import (
    CapacityExhausted,
    IntegrityError,
    TransferFailed,
    VersionSkew,
    WorldlineError,
)
from worldline.park import park_id
from worldline.state.codec import manifest_from_proto, manifest_to_proto
from worldline.state.difference import check_digests
from worldline.state.manifest import Manifest
from worldline.v1 import park_pb2

#: What direct I/O is aligned to; a multiple of every logical block size in use.
BLOCK_BYTES = 4096
#: A sidecar is some 100 kB; one that claims more is not read.
SIDECAR_BYTES_MAX = 64 << 20
VERSION = 1

_MAGIC = b"worldline.park\0\1"
_LENGTH = struct.Struct("<Q")
_SUM_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What makes sense of a parked file's bytes. The manifest has digests."""

    park_id: str
    node_id: str
    file_bytes: int
    manifest: Manifest


def padded_bytes(extent_bytes: int) -> int:
    """Length of the file of an extent: whole blocks."""
    return -(-extent_bytes // BLOCK_BYTES) * BLOCK_BYTES


def encode_sidecar(sidecar: Sidecar) -> bytes:
    """The sidecar's bytes."""
    message = park_pb2.ParkedFile(
        version=VERSION,
        park_id=sidecar.park_id,
        node_id=sidecar.node_id,
        file_bytes=sidecar.file_bytes,
        manifest=manifest_to_proto(sidecar.manifest),
    ).SerializeToString(deterministic=True)
    body = _MAGIC + _LENGTH.pack(len(message)) + message
    return body + hashlib.sha256(body).digest()


def decode_sidecar(data: bytes) -> Sidecar:
    """Parse a sidecar; not one bit of it may differ from what was written.

    Raises:
        IntegrityError: PARKED_FILE_DAMAGED: it was truncated, extended or changed.
        VersionSkew: whole, but of a version that is unknown here.
    """
    body, checksum = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    header_bytes = len(_MAGIC) + _LENGTH.size
    if len(body) < header_bytes or hashlib.sha256(body).digest() != checksum:
        raise _damaged("its checksum does not hold")
    if body[: len(_MAGIC)] != _MAGIC:
        raise VersionSkew(
            "the parked file was written by another version", reason="PARKED_FILE_VERSION"
        )
    message = body[header_bytes:]
    if _LENGTH.unpack_from(body, len(_MAGIC))[0] != len(message):
        raise _damaged("it is not as long as it says")
    try:
        return _parse(park_pb2.ParkedFile.FromString(message))
    except DecodeError as error:
        raise _damaged(str(error)) from error


def _parse(parsed: park_pb2.ParkedFile) -> Sidecar:
    if parsed.version != VERSION:
        raise VersionSkew(
            f"the parked file has version {parsed.version}, this mover knows {VERSION}",
            reason="PARKED_FILE_VERSION",
        )
    try:
        manifest = manifest_from_proto(parsed.manifest)
        check_digests(manifest.layout, manifest.digests, "manifest.digests")
        if parsed.file_bytes != padded_bytes(manifest.layout.extent_bytes):
            raise _damaged(f"{parsed.file_bytes} bytes are not its layout's")
        return Sidecar(park_id(parsed.park_id), parsed.node_id, parsed.file_bytes, manifest)
    except WorldlineError as error:
        raise _damaged(error.message) from error


def _damaged(what: str) -> IntegrityError:
    return IntegrityError(
        f"the manifest of the parked file is damaged: {what}", reason="PARKED_FILE_DAMAGED"
    )


class StateFile:
    """The open `state` file of one parked copy. Threads may write and read disjoint parts at once.

    With `direct`, every view's address, offset and size must be whole blocks.
    """

    def __init__(self, path: Path, *, writable: bool, direct: bool) -> None:
        self.path = path
        self.direct = direct
        flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT | os.O_EXCL if writable else os.O_RDONLY)
        with io_errors(path):
            self._descriptor = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)

    def write(self, offset_bytes: int, view: memoryview) -> None:
        """Write all of the view.

        Raises:
            CapacityExhausted: the disk is full.
            TransferFailed: it failed.
        """
        with io_errors(self.path):
            while view.nbytes:
                written = os.pwrite(self._descriptor, view, offset_bytes)
                offset_bytes += written
                view = view[written:]

    def read(self, offset_bytes: int, view: memoryview) -> None:
        """Fill the view.

        Raises:
            IntegrityError: PARKED_FILE_TRUNCATED, the file ends before.
            TransferFailed: it failed.
        """
        with io_errors(self.path):
            while view.nbytes:
                got = os.preadv(self._descriptor, [view], offset_bytes)
                if not got:
                    raise IntegrityError(
                        f"{self.path} ends at byte {offset_bytes}",
                        reason="PARKED_FILE_TRUNCATED",
                        granule=offset_bytes >> 20,
                    )
                offset_bytes += got
                view = view[got:]

    def sync(self) -> None:
        """Put everything on the disk, and out of the page cache, so that reading reads the disk.

        Raises:
            TransferFailed: it failed: nothing is known of what the disk has.
        """
        with io_errors(self.path):
            os.fsync(self._descriptor)
        if not self.direct:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def io_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says into errors of ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CapacityExhausted(f"no space for {path}", reason="PARK_DISK_FULL") from error
        raise TransferFailed(f"{path}: {error.strerror}", reason="PARK_IO_FAILED") from error
