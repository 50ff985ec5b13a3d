"""CUDA memory: one `cudaMalloc` per slot, made at start and kept; handed out by CUDA IPC.

Plain allocations, because a pooled or imported one can be neither registered by UCX nor exported.
torch never allocates a slot, so its allocator's settings (`expandable_segments` and such) do not
matter to slots, in this process or in an engine's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy
import structlog

from services.mover.memory.base import Granules, IpcHandle, SlotMemory
from worldline.cuda import late
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.devices import devices
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.runtime import call, current_device
from worldline.cuda.stream import Stream
from worldline.cuda.zeros import Look, zero_finder
from worldline.devicename import cuda_index
from worldline.errors import CapacityExhausted, Unavailable, WorldlineError

_log = structlog.get_logger(__name__)

#: Filling or copying a slot takes milliseconds; a device that needs this long has failed.
_DEVICE_S = 30.0
#: A look takes a fraction of a millisecond where a world leaves the device some time, and a move
#: waits for it before its freeze. It can do without.
_LOOK_S = 1.0


class CudaMemory(SlotMemory):
    """A slot in a GPU's memory.

    Raises:
        Unavailable: there is no such GPU; `field` is `devices`.
        CapacityExhausted: it has not that much left, reason MEMORY_EXHAUSTED.
    """

    def __init__(self, device: str, size_bytes: int) -> None:
        index = cuda_index(device)
        if index is None or index >= len(devices()):
            raise Unavailable(
                f"there is no {device} here", reason="CUDA_DEVICE_UNKNOWN", field="devices"
            )
        self.device = device
        self.index = index
        self.size_bytes = size_bytes
        self._uuid = devices()[index].uuid
        try:
            self._memory = DeviceMemory(size_bytes, index)
        except CapacityExhausted as error:
            raise _exhausted(device, index, size_bytes) from error
        self._stream = Stream(index)
        self._reserve_look()

    def _reserve_look(self) -> None:
        """Compile and allocate at start what looks for zeros need, and not in a move."""
        try:
            zero_finder(self.index).reserve(self.size_bytes)
        except WorldlineError as error:
            _log.warning("slots.no_look", device=self.device, error=str(error))

    def prepare(self, extent_bytes: int, *, zero: bool) -> None:
        """Zero [0, extent) when asked; nothing that was begun here before is left to do then."""
        late.wait(self.index, _DEVICE_S)
        if zero:
            self._stream.fill(self._memory.address, 0, extent_bytes)
        self._stream.wait(_DEVICE_S)

    def has_pages(self, extent_bytes: int) -> bool:
        """Device memory always has them. False where a write that was given up may still come.

        Raises:
            Unavailable: the device has failed.
        """
        return self._stream.is_idle and late.is_quiet(self.index)

    def part(self, offset_bytes: int, size_bytes: int) -> DeviceBuffer:
        """The bytes [offset, offset + size)."""
        return self._memory.part(offset_bytes, size_bytes)

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Copy host bytes to [offset, offset + size)."""
        target = self._memory.part(offset_bytes, data.nbytes)
        source = numpy.frombuffer(data, numpy.uint8)
        self._stream.copy(target.address, source.ctypes.data, data.nbytes)
        self._stream.wait(_DEVICE_S)

    def zero_granules(self, extent_bytes: int, among: Granules | None = None) -> Granules:
        """See `SlotMemory.zero_granules`. By a kernel, beside whatever else the device does."""
        look = self.look(extent_bytes, among)
        try:
            return look.found(_LOOK_S)
        finally:
            look.close()

    def look(self, extent_bytes: int, among: Granules | None = None) -> Look:
        """`zero_granules`, begun and not waited for.

        Raises:
            CapacityExhausted, Unavailable: as `ZeroFinder.begin`.
        """
        return zero_finder(self.index).begin(self._memory.part(0, extent_bytes), among)

    def clear(self, runs: Iterable[tuple[int, int]]) -> None:
        """See `SlotMemory.clear`."""
        for offset_bytes, size_bytes in runs:
            part = self._memory.part(offset_bytes, size_bytes)
            self._stream.fill(part.address, 0, part.nbytes)
        self._stream.wait(_DEVICE_S)

    def export(self) -> IpcHandle:
        """CUDA's handle for it, and whose memory it is."""
        return IpcHandle(self._memory.export(), self._uuid)

    def close(self) -> None:
        """Free it. A process that still maps it finds an address that faults."""
        self._stream.close()
        self._memory.close()


def _exhausted(device: str, index: int, size_bytes: int) -> CapacityExhausted:
    with current_device(index):
        free_bytes = call("cudaMemGetInfo")
    return CapacityExhausted(
        f"no room for a slot of {size_bytes} bytes on {device}: {free_bytes} of "
        f"{devices()[index].memory_bytes} bytes are free; lower slot_count or slot_bytes",
        reason="MEMORY_EXHAUSTED",
        field="slot_bytes",
    )
