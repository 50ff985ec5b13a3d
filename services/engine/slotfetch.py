"""Slot fetch: from a one-time token to a mapped slot, on the engine's own device."""

from __future__ import annotations

import os

from services.engine.cudaslot import CudaSlot
from services.engine.device import EngineDevice
from services.engine.hostslot import HostSlot
from services.engine.slotmap import SlotMap
from services.engine.slotsocket import HostMemory, fetch
from worldline.errors import Conflict


def map_slot(
    socket_path: str, token: bytes, slot_bytes: int, timeout_s: float, device: EngineDevice
) -> SlotMap:
    """Fetch the slot from the mover's socket and map it. Blocks: call it off the event loop.

    Raises:
        Unavailable: the socket cannot be reached, the mover refused the token, or its memory
            cannot be opened here.
        Conflict: the slot rests on another device than this engine computes on.
        InvariantBroken: it is not of `slot_bytes` bytes.
    """
    found = fetch(socket_path, token, timeout_s)
    if isinstance(found, HostMemory):
        try:
            if device.index is not None:
                raise _elsewhere("host memory", device)
            return HostSlot(found.descriptor, slot_bytes)
        finally:
            os.close(found.descriptor)  # the mapping holds its own
    if found.device_uuid != device.uuid:
        raise _elsewhere(found.device_uuid, device)
    return CudaSlot(found.handle, slot_bytes, device)


def _elsewhere(where: str, device: EngineDevice) -> Conflict:
    return Conflict(
        f"the slot rests in {where}, this engine computes on {device.name} {device.uuid}".rstrip(),
        reason="SLOT_ELSEWHERE",
    )
