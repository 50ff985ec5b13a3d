"""Crossings: the way between a slot and its parked copy, for whatever memory the slot rests in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.mover.crossing import Crossing
from services.mover.devicecrossing import (
    DeviceToFile,
    DeviceToPinned,
    FileToDevice,
    PinnedBuffer,
    PinnedToDevice,
)
from services.mover.filecrossing import FileReading, FileWriting
from services.mover.hostcrossing import HostCrossing
from services.mover.memory.base import SlotMemory
from services.mover.memory.cuda import CudaMemory
from services.mover.parkfile import StateFile
from services.mover.parkmemory import ParkBuffer, PlainBuffer
from services.mover.piecereading import PieceReading, Reading
from worldline.cuda.digest import CudaDigester
from worldline.devicename import cuda_index
from worldline.errors import InvariantBroken
from worldline.state.digest import Digester
from worldline.state.layout import Layout


@dataclass(frozen=True, slots=True)
class Way:
    """A crossing and what digests its two ends; `None` for an end that nobody reads on the way."""

    crossing: Crossing
    before: Reading | None
    after: Reading | None

    def close(self) -> None:
        """Give back what the digests took of a device."""
        self.crossing.close()
        for reading in (self.before, self.after):
            if isinstance(reading, CudaDigester):
                reading.close()


def buffer_maker(devices: tuple[str, ...]) -> Callable[[int], ParkBuffer]:
    """How parked memory is made on a node with these devices: pinned where one is a GPU."""
    indices = [index for name in devices if (index := cuda_index(name)) is not None]
    if indices:
        return lambda size_bytes: PinnedBuffer(size_bytes, indices[0])
    return PlainBuffer


def out_to_memory(layout: Layout, memory: SlotMemory, buffer: ParkBuffer) -> Way:
    """From a slot to a buffer, both ends digested."""
    extent_bytes = layout.extent_bytes
    copy = buffer.view[:extent_bytes]
    if isinstance(memory, CudaMemory):
        device = CudaDigester(layout, memory.index)
        pieces = PieceReading(layout, device, copy)
        part = memory.part(0, extent_bytes)
        return Way(DeviceToPinned(part, copy, before=device, after=pieces), device, pieces)
    before, after = Digester(layout), Digester(layout)
    slot = host_view(memory, extent_bytes)
    return Way(HostCrossing(slot, copy, before=before, after=after), before, after)


def out_to_file(layout: Layout, memory: SlotMemory, file: StateFile) -> Way:
    """From a slot to a file, the slot digested: what the file holds it must be asked itself."""
    if isinstance(memory, CudaMemory):
        device = CudaDigester(layout, memory.index)
        part = memory.part(0, layout.extent_bytes)
        return Way(DeviceToFile(part, file, device), device, None)
    before = Digester(layout)
    slot = host_view(memory, layout.extent_bytes)
    return Way(FileWriting(slot, file, before), before, None)


def read_back(layout: Layout, file: StateFile) -> Way:
    """A file read again, for its digest alone."""
    after = Digester(layout)
    return Way(FileReading(file, None, after), None, after)


def back_from_memory(layout: Layout, buffer: ParkBuffer, memory: SlotMemory) -> Way:
    """From a buffer to a slot; the slot is digested where the bytes have arrived."""
    extent_bytes = layout.extent_bytes
    copy = buffer.view[:extent_bytes]
    if isinstance(memory, CudaMemory):
        device = CudaDigester(layout, memory.index)
        part = memory.part(0, extent_bytes)
        return Way(PinnedToDevice(copy, part, device), None, device)
    after = Digester(layout)
    slot = host_view(memory, extent_bytes)
    return Way(HostCrossing(copy, slot, before=None, after=after), None, after)


def back_from_file(layout: Layout, file: StateFile, memory: SlotMemory) -> Way:
    """From a file to a slot; the slot is digested where the bytes have arrived."""
    if isinstance(memory, CudaMemory):
        device = CudaDigester(layout, memory.index)
        part = memory.part(0, layout.extent_bytes)
        return Way(FileToDevice(file, part, device), None, device)
    after = Digester(layout)
    slot = host_view(memory, layout.extent_bytes)
    return Way(FileReading(file, slot, after), None, after)


def host_view(memory: SlotMemory, extent_bytes: int) -> memoryview:
    """The extent of a slot in host memory."""
    part = memory.part(0, extent_bytes)
    if not isinstance(part, memoryview):
        raise InvariantBroken(f"no way for a slot on {memory.device}")
    return part
