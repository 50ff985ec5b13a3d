"""CUDA slot: a slot in a GPU's memory, opened from the mover's by CUDA IPC."""

from __future__ import annotations

import weakref

import torch

from services.engine.device import EngineDevice
from services.engine.slotmap import SlotMap
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.digest import CudaDigester
from worldline.cuda.memory import ImportedMemory
from worldline.errors import InvariantBroken
from worldline.state.layout import Layout
from worldline.state.manifest import Digests


class _Loan:
    """Lives as long as any tensor over the slot's memory, however many views deep."""

    __slots__ = ("__weakref__",)


class CudaSlot(SlotMap):
    """Memory that the mover has allocated with `cudaMalloc`, mapped without a copy.

    Raises:
        Unavailable: CUDA IPC does not work here, or the mover is gone.
    """

    def __init__(self, handle: bytes, size_bytes: int, device: EngineDevice) -> None:
        if device.index is None:
            raise InvariantBroken("a slot on a GPU for an engine on the CPU")
        self.size_bytes = size_bytes
        self._device = device
        self._index = device.index
        self._memory = ImportedMemory(handle, size_bytes, device.index)
        self._loans: weakref.WeakSet[_Loan] = weakref.WeakSet()

    def buffer(self) -> torch.Tensor:
        """See `SlotMap`. torch counts it as memory of others: its allocator never sees it."""
        loan = _Loan()
        self._loans.add(loan)
        return DeviceBuffer(self._memory.address, self.size_bytes, self._index, loan).tensor()

    def settle(self) -> None:
        """See `SlotMap`."""
        self._device.settle()

    def digest(self, layout: Layout) -> Digests:
        """See `SlotMap`."""
        digester = CudaDigester(layout, self._index)
        try:
            digester.update(0, digester.granule_count, self._memory.part(0, layout.extent_bytes))
            return digester.digests()
        finally:
            digester.close()

    def _let_go(self) -> bool:
        if not self._memory.is_closed:
            if len(self._loans):
                return False
            self._memory.close()
        return True
