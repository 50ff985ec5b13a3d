"""Neighbours: memory files of other processes of this host, mapped here to be read.

A file is mapped once and kept for as long as an endpoint leads to its owner, so that no move pays
for its page tables. Mapping takes a tenth of a second per gigabyte with small pages: it happens on
a thread of its own, when an endpoint first expects bytes, long before they come.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy
import structlog

from services.mover.transport.peeraddress import MemoryFile

_log = structlog.get_logger(__name__)

#: linux/mman.h, since Linux 5.14.
_MADV_POPULATE_READ = 22
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Neighbour:
    """The files of one process. Closed by whoever owns it, once no endpoint leads there."""

    def __init__(self, pid: int, pool: ThreadPoolExecutor, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when a file is mapped: who waits for it may sleep."""
        self._pid = pid
        self._pool = pool
        self._wake = wake
        self._mappings: dict[MemoryFile, Future[Mapping | None]] = {}

    def expect(self, files: Iterable[MemoryFile]) -> None:
        """Begin to map these files, those that are not mapped yet."""
        for file in files:
            if file not in self._mappings:
                opening = self._pool.submit(_open, self._pid, file)
                self._mappings[file] = opening
                opening.add_done_callback(lambda _: self._wake())

    def mapping(self, file: MemoryFile) -> Future[Mapping | None]:
        """The mapping of a file, once it is there; None where it cannot be mapped."""
        self.expect((file,))
        return self._mappings[file]

    def close(self) -> None:
        """Unmap everything, on the pool's thread; nothing may read from here any more."""
        mappings, self._mappings = self._mappings, {}
        for mapping in mappings.values():
            mapping.cancel()
            self._pool.submit(_unmap, mapping)


class Mapping:
    """One file, read-only."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._array = numpy.frombuffer(memory, numpy.uint8)
        self.address: int = self._array.ctypes.data

    def populate(self, start_bytes: int, end_bytes: int) -> None:
        """Fill in the page tables."""
        _LIBC.madvise(self.address + start_bytes, end_bytes - start_bytes, _MADV_POPULATE_READ)

    def close(self) -> None:
        """Unmap."""
        del self._array
        self._memory.close()


def _open(pid: int, file: MemoryFile) -> Mapping | None:
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{file.number}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != (file.file_device, file.inode):
                raise FileNotFoundError("the descriptor is another file's by now")
            if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise PermissionError("the file could shrink, and whoever reads it die of it")
            memory = mmap.mmap(descriptor, file.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            mapping = Mapping(memory)
            with contextlib.suppress(OSError):  # the page tables then fill on the way
                for start, end in _present(descriptor, file.size_bytes):
                    mapping.populate(start, end)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        _log.warning("neighbour.unmappable", pid=pid, why=str(error))
        return None
    return mapping


def _present(descriptor: int, size_bytes: int) -> Iterable[tuple[int, int]]:
    """The parts of a file that have pages: reading the others would take memory for zeros."""
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _unmap(mapping: Future[Mapping | None]) -> None:
    if not mapping.cancelled():
        opened = mapping.result()
        if opened is not None:
            opened.close()
