"""Host slot: a slot in host memory, mapped from the mover's memory file."""

from __future__ import annotations

import mmap
import os
import time

import torch

from services.engine.parts import HOST_PART_BYTES, spans
from services.engine.slotmap import SlotMap
from worldline.errors import InvariantBroken
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Digests


class HostSlot(SlotMap):
    """A mapping of a memory file, of which the first `size_bytes` are the slot.

    All of it, because large pages are mapped and unmapped as a whole. The descriptor stays the
    caller's.

    Raises:
        InvariantBroken: the file is shorter.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        held_bytes = os.fstat(descriptor).st_size
        if held_bytes < size_bytes:
            raise InvariantBroken(f"slot of {held_bytes} bytes where {size_bytes} were promised")
        self._mapping = mmap.mmap(descriptor, held_bytes, mmap.MAP_SHARED)
        self.size_bytes = size_bytes

    def buffer(self) -> torch.Tensor:
        """See `SlotMap`.

        torch holds only the object that it is given, not the mapping's buffer; the memoryview in
        between does, so that closing under a live tensor is refused instead of a crash later.
        """
        slot = memoryview(self._mapping)[: self.size_bytes]
        return torch.frombuffer(slot, dtype=torch.uint8)

    def settle(self) -> None:
        """The CPU queues nothing."""

    def digest(self, layout: Layout) -> Digests:
        """See `SlotMap`."""
        with memoryview(self._mapping) as view:
            return digest_slot(layout, view)

    def _let_go(self) -> bool:
        if self._mapping.closed:
            return True
        self._give_pages_back()
        try:
            self._mapping.close()
        except BufferError:
            return False
        return True

    def _give_pages_back(self) -> None:
        """Part by part, before the whole is unmapped.

        Whoever takes memory of the kernel waits while a mapping with pages is taken down, and so do
        the event loop and the quanta; between two parts they go first. The bytes are the file's.
        """
        for start, stop in spans(len(self._mapping), HOST_PART_BYTES):
            try:
                self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)
            except OSError:  # huge pages, before Linux 5.18: they are few
                return
            time.sleep(0)  # whoever wants the interpreter has it now
