"""Pinned: host memory that the devices copy from and to directly, at the speed of the bus.

Taking it costs about 0.3 s a gigabyte: do it once and keep it.
"""

from __future__ import annotations

import ctypes
import weakref

from worldline.cuda.availability import require
from worldline.cuda.runtime import call, current_device, runtime
from worldline.errors import InvalidInput


class PinnedMemory:
    """Fresh pinned memory, usable with every device.

    Raises:
        InvalidInput: the size is not positive.
        CapacityExhausted: the host gives no more pinned memory, reason MEMORY_EXHAUSTED.
        Unavailable: no such device.
    """

    def __init__(self, size_bytes: int, device_index: int = 0) -> None:
        if size_bytes <= 0:
            raise InvalidInput(f"{size_bytes} bytes of pinned memory", field="size_bytes")
        require()
        with current_device(device_index):
            self.address = int(call("cudaHostAlloc", size_bytes, runtime().cudaHostAllocPortable))
        self.size_bytes = size_bytes
        array = (ctypes.c_ubyte * size_bytes).from_address(self.address)
        # The array lives as long as any view of it, and the memory as long as the array.
        weakref.finalize(array, call, "cudaFreeHost", self.address).atexit = False
        self._view = memoryview(array).cast("B")

    @property
    def view(self) -> memoryview:
        """All bytes, writable."""
        return self._view

    def close(self) -> None:
        """Give the memory back, now or with the last view that somebody still holds."""
        self._view.release()
