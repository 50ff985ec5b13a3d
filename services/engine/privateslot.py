"""Private slot: memory of this process that stands for a slot, for worlds of nobody."""

from __future__ import annotations

import torch

from services.engine.device import EngineDevice
from services.engine.slotmap import SlotMap
from worldline.errors import CapacityExhausted
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Digests

#: Another session of the device may have gone by then.
_RETRY_AFTER_MS = 1_000


def private_bytes(size_bytes: int, device: EngineDevice) -> torch.Tensor:
    """So many zero bytes on the engine's device, for a world of nobody.

    Raises:
        CapacityExhausted: NO_PRIVATE_MEMORY: they are not to be had beside the mover's slots.
    """
    try:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device.torch_device)
    except (RuntimeError, MemoryError) as error:  # torch's words for memory that is not there
        raise CapacityExhausted(
            f"{device.name} has no {size_bytes} bytes free beside its slots, which an engine needs "
            "for a moment to check and to measure a preset: start its mover with fewer slots",
            reason="NO_PRIVATE_MEMORY",
            retry_after_ms=_RETRY_AFTER_MS,
        ) from error


class PrivateSlot(SlotMap):
    """Zeroed memory on the engine's device. torch's allocator has it back after `close`.

    Raises:
        CapacityExhausted: as `private_bytes`.
    """

    def __init__(self, size_bytes: int, device: EngineDevice) -> None:
        self.size_bytes = size_bytes
        self._device = device
        self._memory: torch.Tensor | None = private_bytes(size_bytes, device)

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
