"""Private slot: memory of this process that stands for a slot, for worlds of nobody."""

from __future__ import annotations

import torch

from services.engine.device import EngineDevice
from services.engine.slotmap import SlotMap
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Digests


class PrivateSlot(SlotMap):
    """Zeroed memory on the engine's device. torch's allocator has it back after `close`."""

    def __init__(self, size_bytes: int, device: EngineDevice) -> None:
        self.size_bytes = size_bytes
        self._device = device
        self._memory: torch.Tensor | None = torch.zeros(
            size_bytes, dtype=torch.uint8, device=device.torch_device
        )

    def buffer(self) -> torch.Tensor:
        """See `SlotMap`."""
        if self._memory is None:
            raise RuntimeError("the slot was closed")
        return self._memory

    def settle(self) -> None:
        """See `SlotMap`."""
        self._device.settle()

    def digest(self, layout: Layout) -> Digests:
        """See `SlotMap`. On the host, wherever the memory is: nobody waits for it."""
        return digest_slot(layout, self.buffer().cpu().numpy().data)

    def _let_go(self) -> bool:
        self._memory = None
        return True
