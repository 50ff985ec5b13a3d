"""Host memory: one anonymous memory file per slot, mapped here and handed out as a descriptor.

`memfd_create` leaves no name in /dev/shm, needs no room there, and the kernel frees the pages
when the last process that maps them is gone, whatever happened to it. Pages are taken before a
transfer, and never given back while the slot exists: a first touch on the wire costs more than the
wire itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterable

import numpy as np

from services.mover.memory.base import Descriptor, Granules, SlotMemory
from services.mover.memory.pages import (
    HUGE_BYTES,
    HugePages,
    PageKind,
    kinds_to_try,
    memory_file,
    populate,
    remedy,
    request_huge,
)
from worldline.errors import CapacityExhausted, Unavailable
from worldline.state.digest import GRANULE_BYTES

#: So much at once, that a failure names a place and a mover that stops need not wait long.
_POPULATE_STEP_BYTES = 64 << 20
#: Of a cache: two readings so far apart are aligned alike, which makes them as fast as one.
_LINE_BYTES = 64
#: Other threads run meanwhile, as beside every foreign function.
_COMPARE = ctypes.CDLL(None).memcmp
_COMPARE.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class HostMemory(SlotMemory):
    """A slot in the host's memory. It is zeros until somebody writes to it."""

    device = "cpu"

    def __init__(self, name: str, size_bytes: int, huge_pages: HugePages = HugePages.AUTO) -> None:
        """Take the address space; pages come with `prepare`.

        Raises:
            Unavailable: the system cannot, or large pages are required and there are none.
        """
        self.size_bytes = size_bytes
        self.descriptor, self._map, self.pages = _mapped(name, size_bytes, huge_pages)
        self._view = memoryview(self._map)[:size_bytes]
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        #: Bytes from the start that have pages, and those that may be other than zero.
        self._resident_bytes = 0
        self._used_bytes = 0

    def prepare(self, extent_bytes: int, *, zero: bool) -> None:
        """Give [0, extent) its pages; with small ones it takes a second per gigabyte, once."""
        self._used_bytes = self._written_bytes()
        self.populate(extent_bytes)
        known = min(self._used_bytes, extent_bytes)
        if zero and known:
            ctypes.memset(self._address, 0, known)
        self._used_bytes = max(self._used_bytes, extent_bytes)

    def has_pages(self, extent_bytes: int) -> bool:
        """Whether [0, extent) has had its pages before."""
        return extent_bytes <= self._resident_bytes

    def populate(self, extent_bytes: int) -> None:
        """Give [0, extent) its pages and leave what is there.

        Raises:
            CapacityExhausted: the machine has no memory for it.
        """
        # Pages stay: walking those that are there would cost 10 ms a gigabyte.
        for start in range(self._resident_bytes, extent_bytes, _POPULATE_STEP_BYTES):
            self._populate(start, min(start + _POPULATE_STEP_BYTES, extent_bytes))
        self._resident_bytes = max(self._resident_bytes, extent_bytes)

    def _written_bytes(self) -> int:
        """An upper bound, from the start. A tenant maps the whole slot, whatever its extent.

        Beyond its extent it was written to where there are pages that were not taken here. Those
        taken in advance do not tell.
        """
        taken_bytes = os.fstat(self.descriptor).st_blocks * 512
        strange = taken_bytes > self._page_end(self._resident_bytes)
        in_advance = self._resident_bytes > self._used_bytes > 0
        return self.size_bytes if strange or in_advance else self._used_bytes

    def part(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """A view of the bytes [offset, offset + size)."""
        return self._view[offset_bytes : offset_bytes + size_bytes]

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Copy host bytes to [offset, offset + size)."""
        self._view[offset_bytes : offset_bytes + data.nbytes] = data

    def zero_granules(self, extent_bytes: int, among: Granules | None = None) -> Granules:
        """See `SlotMemory.zero_granules`. A written granule costs as much as its zeros in front."""
        count = -(-extent_bytes // GRANULE_BYTES)
        found = np.ones(count, np.bool_) if among is None else among.copy()
        for granule in np.flatnonzero(found).tolist():
            start = granule * GRANULE_BYTES
            found[granule] = self._is_zeros(start, min(GRANULE_BYTES, extent_bytes - start))
        return found

    def _is_zeros(self, offset_bytes: int, size_bytes: int) -> bool:
        """Zeros in front, and equal to itself a cache line further on, all along."""
        shift_bytes = min(_LINE_BYTES, size_bytes)
        if any(self.part(offset_bytes, shift_bytes)):
            return False
        address = self._address + offset_bytes
        return bool(_COMPARE(address, address + shift_bytes, size_bytes - shift_bytes) == 0)

    def clear(self, runs: Iterable[tuple[int, int]]) -> None:
        """See `SlotMemory.clear`."""
        for offset_bytes, size_bytes in runs:
            part = self.part(offset_bytes, size_bytes)
            ctypes.memset(self._address + offset_bytes, 0, part.nbytes)

    def export(self) -> Descriptor:
        """Its memory file."""
        return Descriptor(self.descriptor)

    def _populate(self, start: int, end: int) -> None:
        aligned = start - start % self._page_bytes
        try:
            populate(self._address + aligned, self._page_end(end) - aligned)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.EFAULT):
                raise CapacityExhausted(
                    f"no memory for bytes {start} to {end} of a slot", reason="MEMORY_EXHAUSTED"
                ) from error
            # An older kernel: touch each page by hand. Reading back keeps what is there.
            for offset in range(aligned, end, self._page_bytes):
                self._map[offset] = self._map[offset]

    @property
    def _page_bytes(self) -> int:
        return HUGE_BYTES if self.pages is PageKind.RESERVED else mmap.PAGESIZE

    def _page_end(self, size_bytes: int) -> int:
        return -(-size_bytes // self._page_bytes) * self._page_bytes

    def close(self) -> None:
        """Unmap.

        Where a view is still alive, in the frames of an exception for instance, the mapping goes
        with the last of them instead of now.
        """
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self.descriptor)


def _mapped(name: str, size_bytes: int, huge_pages: HugePages) -> tuple[int, mmap.mmap, PageKind]:
    """A memory file, its mapping, and the largest pages that it could have."""
    failure: Exception | None = None
    for kind in kinds_to_try(huge_pages, size_bytes):
        try:
            descriptor = memory_file(name, size_bytes, kind)
        except (AttributeError, OSError, OverflowError) as error:
            failure = error
            continue
        try:
            # Whoever maps it may rely on its size: a read beyond the end would be a SIGBUS.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            # The whole file: the length of large pages is a multiple of theirs. Reserved ones are
            # set aside here or not at all, so that touching them later cannot fail.
            mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size, mmap.MAP_SHARED)
        except (OSError, ValueError, OverflowError) as error:
            os.close(descriptor)
            failure = error
            continue
        if kind is PageKind.TRANSPARENT:
            request_huge(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), len(mapping))
        return descriptor, mapping, kind
    raise _unavailable(size_bytes, huge_pages, failure)


def _unavailable(size_bytes: int, huge_pages: HugePages, failure: Exception | None) -> Unavailable:
    if huge_pages is HugePages.REQUIRE:
        return Unavailable(
            f"no large pages for a slot of {size_bytes} bytes: {remedy(size_bytes)}",
            reason="HUGE_PAGES_UNAVAILABLE",
            field="huge_pages",
        )
    return Unavailable(
        f"cannot make a slot of {size_bytes} bytes: {failure}; slots need memfd_create, of Linux "
        "3.17 or later, and that much address space",
        reason="SLOT_UNMAPPABLE",
        field="slot_bytes",
    )
