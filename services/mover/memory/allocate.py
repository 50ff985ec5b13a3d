"""Allocate: slot memory on whichever device is named."""

from __future__ import annotations

from services.mover.memory.base import SlotMemory
from services.mover.memory.cuda import CudaMemory
from services.mover.memory.host import HostMemory
from services.mover.memory.pages import HugePages
from worldline.devicename import CPU


def allocate_memory(
    device: str, name: str, size_bytes: int, huge_pages: HugePages = HugePages.AUTO
) -> SlotMemory:
    """Memory of `size_bytes` on `device`; `name` is for people who look at a process's maps.

    `huge_pages` is about the host's memory; a device has its own.

    Raises:
        Unavailable: the device or its memory cannot be used here; `field` is the setting.
        CapacityExhausted: the device has no memory for it.
    """
    if device == CPU:
        return HostMemory(name, size_bytes, huge_pages)
    return CudaMemory(device, size_bytes)
