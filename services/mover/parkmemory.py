"""Park memory: host memory for parked states, apart from the slots, kept to be used again.

Taking pages, and pinning them even more, costs a multiple of a copy: a buffer that was given back
is the next one's, and only what no longer fits is freed.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from worldline.errors import CapacityExhausted

#: linux/mman.h, since Linux 5.14; mmap of Python 3.11 does not name it.
_MADV_POPULATE_WRITE = 23
_STEP_BYTES = 64 << 20


class ParkBuffer(ABC):
    """A run of host memory. Its calls block: they are for threads."""

    size_bytes: int

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The bytes; no view of them may be alive at `close`."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back."""


class PlainBuffer(ParkBuffer):
    """Ordinary memory with its pages taken.

    Raises:
        CapacityExhausted: MEMORY_EXHAUSTED, the machine has none for it.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        try:
            self._map = mmap.mmap(-1, max(1, size_bytes))
        except (OSError, ValueError, OverflowError) as error:
            raise _no_memory(size_bytes) from error
        for start in range(0, size_bytes, _STEP_BYTES):
            try:
                self._map.madvise(_MADV_POPULATE_WRITE, start, min(_STEP_BYTES, size_bytes - start))
            except OSError as error:
                if error.errno == 12:  # ENOMEM
                    self._map.close()
                    raise _no_memory(size_bytes) from error
                break  # an older kernel: the copy takes the pages

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return memoryview(self._map)

    def close(self) -> None:
        """Unmap; where a view is still alive, in an exception's frames, with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()


class ParkPool:
    """Buffers in use and free ones, together never more than `limit_bytes`. For any thread."""

    def __init__(self, limit_bytes: int, make: Callable[[int], ParkBuffer] = PlainBuffer) -> None:
        self._limit_bytes = limit_bytes
        self._make = make
        self._free: list[ParkBuffer] = []
        self._held_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> ParkBuffer:
        """A buffer of at least that size: the smallest free one that is, else a new one.

        Raises:
            CapacityExhausted: PARK_FULL, beyond the limit; MEMORY_EXHAUSTED.
        """
        with self._lock:
            return self._take(size_bytes)

    def prepare(self, count: int, size_bytes: int) -> None:
        """Have so many free buffers of that size: taking memory costs more than copying to it.

        Raises:
            CapacityExhausted: as `take`.
        """
        for buffer in [self.take(size_bytes) for _ in range(count)]:
            self.give(buffer)

    def give(self, buffer: ParkBuffer) -> None:
        """Take a buffer back, for the next one."""
        with self._lock:
            self._free.append(buffer)

    def close(self) -> None:
        """Free what is not in use."""
        with self._lock:
            while self._free:
                self._close(self._free.pop())

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers, in use or free."""
        return self._held_bytes

    def _take(self, size_bytes: int) -> ParkBuffer:
        fitting = [one for one in self._free if one.size_bytes >= size_bytes]
        if fitting:
            best = min(fitting, key=lambda one: one.size_bytes)
            self._free.remove(best)
            return best
        while self._free and self._held_bytes + size_bytes > self._limit_bytes:
            self._close(self._free.pop(0))
        if self._held_bytes + size_bytes > self._limit_bytes:
            raise CapacityExhausted(
                f"{size_bytes} bytes do not fit: buffers of {self._held_bytes} of "
                f"{self._limit_bytes} bytes are in use",
                reason="PARK_FULL",
                field="kind",
            )
        buffer = self._make(size_bytes)
        self._held_bytes += size_bytes
        return buffer

    def _close(self, buffer: ParkBuffer) -> None:
        self._held_bytes -= buffer.size_bytes
        buffer.close()


def _no_memory(size_bytes: int) -> CapacityExhausted:
    return CapacityExhausted(
        f"the machine has no memory for a parked state of {size_bytes} bytes",
        reason="MEMORY_EXHAUSTED",
    )
