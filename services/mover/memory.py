"""Slot memory: one anonymous memory file per slot, mapped here and handed out as a descriptor.

`memfd_create` leaves no name in /dev/shm, needs no room there, and the kernel frees the pages
when the last process that maps them is gone, whatever happened to it. Pages are taken when first
needed, but before a transfer: a first touch on the wire costs more than the wire itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from worldline.errors import CapacityExhausted, Unavailable

#: linux/mman.h, since Linux 5.14; mmap of Python 3.11 does not name it.
_MADV_POPULATE_WRITE = 23
_POPULATE_STEP_BYTES = 64 << 20


class SlotMemory:
    """The bytes of one slot. Its blocking calls are for threads."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        try:
            self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError) as error:
            raise Unavailable(
                f"memfd_create does not work here: {error}; slots need Linux 3.17 or later",
                reason="MEMFD_UNAVAILABLE",
                field="slot_bytes",
            ) from error
        try:
            os.ftruncate(self.descriptor, size_bytes)
            self._map = mmap.mmap(self.descriptor, size_bytes, mmap.MAP_SHARED)
        except (OSError, ValueError, OverflowError) as error:
            os.close(self.descriptor)
            raise Unavailable(
                f"cannot map a slot of {size_bytes} bytes: {error}",
                reason="SLOT_UNMAPPABLE",
                field="slot_bytes",
            ) from error
        self.view = memoryview(self._map)
        #: Bytes from the start that have pages; beyond them the file still reads as zeros.
        self._resident_bytes = 0

    def prepare(self, extent_bytes: int, *, zero: bool) -> None:
        """Give [0, extent) its pages, zeroed when asked. Takes about a second per gigabyte once.

        Raises:
            CapacityExhausted: the machine has no memory for it.
        """
        if os.fstat(self.descriptor).st_blocks * 512 > _page_end(self._resident_bytes):
            # A former tenant, which mapped the whole slot, wrote beyond its extent.
            self._resident_bytes = self.size_bytes
        known = min(self._resident_bytes, extent_bytes)
        if zero and known:
            ctypes.memset(_address(self.view), 0, known)
        for start in range(0, extent_bytes, _POPULATE_STEP_BYTES):
            self._populate(start, min(start + _POPULATE_STEP_BYTES, extent_bytes))
        self._resident_bytes = max(self._resident_bytes, extent_bytes)

    def _populate(self, start: int, end: int) -> None:
        aligned = start - start % mmap.PAGESIZE
        try:
            self._map.madvise(_MADV_POPULATE_WRITE, aligned, end - aligned)
        except OSError as error:
            if error.errno == 12:  # ENOMEM
                raise CapacityExhausted(
                    f"no memory for bytes {start} to {end} of a slot", reason="MEMORY_EXHAUSTED"
                ) from error
            # An older kernel: touch each page by hand. Reading back keeps what is there.
            for offset in range(aligned, end, mmap.PAGESIZE):
                self._map[offset] = self._map[offset]

    def close(self) -> None:
        """Unmap. Processes that mapped the descriptor keep their pages.

        Where a view is still alive, in the frames of an exception for instance, the mapping goes
        with the last of them instead of now.
        """
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self.descriptor)


def _page_end(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
