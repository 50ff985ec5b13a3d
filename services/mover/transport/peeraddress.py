"""Peer address: where a transport's worker is reached, and what of its memory a neighbour may map.

Two processes of one host can read each other's memory files in place. Both ends decide alone, from
the two addresses, whether they are such neighbours, so the decision is the same at both.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from worldline.errors import TransferFailed

#: Worker addresses are a few hundred bytes; anything longer is not one.
ADDRESS_BYTES_MAX = 65_536
#: More memory files than a mover has slots in practice; further ones are mapped when first used.
REGIONS_MAX = 512
_MAGIC = b"WLA1"
_HOST_BYTES = 16
_HEADER = struct.Struct(f"<4s{_HOST_BYTES}sIH")
_REGION = struct.Struct("<iQQQ")


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A memory file of another process: its descriptor there, and what proves that it is it."""

    number: int
    file_device: int
    inode: int
    size_bytes: int

    @classmethod
    def of(cls, descriptor: int) -> MemoryFile:
        """Of a descriptor of this process."""
        facts = os.fstat(descriptor)
        return cls(descriptor, facts.st_dev, facts.st_ino, facts.st_size)


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A worker's address, as UCX packs it, and the process behind it."""

    worker: bytes
    #: Names the host and the namespaces within it; empty: nobody may map this process's memory.
    host: bytes = b""
    pid: int = 0
    files: tuple[MemoryFile, ...] = ()

    def is_neighbour_of(self, other: PeerAddress) -> bool:
        """Whether each may map the other's memory files. Never itself."""
        return bool(self.host) and self.host == other.host and self.worker != other.worker

    def pack(self) -> bytes:
        """The form that travels."""
        host = self.host.ljust(_HOST_BYTES, b"\0")
        files = self.files[:REGIONS_MAX]
        packed = [_HEADER.pack(_MAGIC, host, self.pid, len(files))]
        packed += [_REGION.pack(f.number, f.file_device, f.inode, f.size_bytes) for f in files]
        return b"".join([*packed, self.worker])


def peer_address(packed: bytes) -> PeerAddress:
    """Parse.

    Raises:
        TransferFailed: it is no such address; `field` is `worker_address`.
    """
    try:
        if len(packed) > ADDRESS_BYTES_MAX:
            raise ValueError(f"{len(packed)} bytes")
        magic, host, pid, count = _HEADER.unpack_from(packed)
        if magic != _MAGIC or count > REGIONS_MAX:
            raise ValueError("not of this kind")
        end = _HEADER.size + count * _REGION.size
        files = tuple(MemoryFile(*f) for f in _REGION.iter_unpack(packed[_HEADER.size : end]))
        if len(files) != count or len(packed) <= end:
            raise ValueError("cut off")
    except (struct.error, ValueError) as error:
        raise TransferFailed(f"not a worker address: {error}", field="worker_address") from error
    return PeerAddress(packed[end:], host.rstrip(b"\0") and host, pid, files)


@cache
def this_host() -> bytes:
    """Equal in two processes exactly where one can name and open the other's descriptors.

    Same boot of the same kernel, same process namespace, same user. Empty where that is unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return b""
    facts = b"%s/%d/%d" % (boot.strip(), namespace, os.geteuid())
    return blake2b(facts, digest_size=_HOST_BYTES).digest()


def own_address(worker: bytes, descriptors: Iterable[int], *, mappable: bool) -> PeerAddress:
    """This process's address; `descriptors` are its memory files."""
    if not mappable:
        return PeerAddress(worker)
    files = tuple(MemoryFile.of(descriptor) for descriptor in descriptors)
    return PeerAddress(worker, this_host(), os.getpid(), files)
