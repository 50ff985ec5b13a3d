"""Memory: device memory of this process, and of another one that was exported to this.

Plain `cudaMalloc`: UCX registers it and hands it to its peers, and CUDA IPC exports it, which
neither can do with pooled or imported memory. An export is 64 bytes that any process on the host
can open while the exporter keeps the memory; closing the exporter's first leaves importers with an
address that faults.
"""

from __future__ import annotations

import ctypes
import weakref
from types import TracebackType
from typing import Self

from worldline.cuda.availability import require
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.runtime import call, current_device, runtime
from worldline.errors import InvalidInput, Unavailable, WorldlineError

#: Of a `cudaIpcMemHandle_t`.
HANDLE_BYTES = 64


class _Region:
    """Device memory with an end: closed once, at the latest when nothing refers to it."""

    def __init__(self, address: int, size_bytes: int, device_index: int, release: str) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.device_index = device_index
        self._close = weakref.finalize(self, _release, release, address, device_index)
        self._close.atexit = False  # the driver takes everything back, and may be gone before

    @property
    def device(self) -> str:
        """`cuda:0` and so on."""
        return f"cuda:{self.device_index}"

    @property
    def is_closed(self) -> bool:
        """Whether the memory was given back."""
        return not self._close.alive

    @property
    def whole(self) -> DeviceBuffer:
        """All bytes."""
        return DeviceBuffer(self.address, self.size_bytes, self.device_index, self)

    def part(self, offset_bytes: int, size_bytes: int) -> DeviceBuffer:
        """The bytes [offset, offset + size), without a copy.

        Raises:
            InvalidInput: they are not all in this memory.
        """
        return self.whole.part(offset_bytes, size_bytes)

    def close(self) -> None:
        """Give the memory back; buffers and tensors over it are void from here on.

        Waits for the device's work (the driver does) and may therefore take a while. Closing again
        does nothing.

        Raises:
            Unavailable: the context was lost before; the memory is gone with it.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class DeviceMemory(_Region):
    """Memory that this process allocated.

    Raises:
        InvalidInput: the size is not positive.
        CapacityExhausted: the device has not that much left, reason MEMORY_EXHAUSTED.
        Unavailable: no such device.
    """

    def __init__(self, size_bytes: int, device_index: int) -> None:
        if size_bytes <= 0:
            raise InvalidInput(f"{size_bytes} bytes of device memory", field="size_bytes")
        require()
        with current_device(device_index):
            address = int(call("cudaMalloc", size_bytes))
        super().__init__(address, size_bytes, device_index, "cudaFree")

    def export(self) -> bytes:
        """64 bytes with which another process on this host opens the same memory.

        Raises:
            Unavailable: the system allows no CUDA IPC, reason CUDA_IPC_UNAVAILABLE.
        """
        try:
            with current_device(self.device_index):
                handle = call("cudaIpcGetMemHandle", self.address)
        except WorldlineError as error:
            raise _no_ipc("export", error) from error
        return ctypes.string_at(handle.getPtr(), HANDLE_BYTES)


class ImportedMemory(_Region):
    """Memory that another process exported, mapped into this one.

    `device_index` is of the device from which it is to be used; where the memory rests on another
    one, that must be a peer. Opening takes milliseconds, so keep it.

    Raises:
        InvalidInput: the handle is not 64 bytes, or the size is not positive.
        Unavailable: the exporter is gone, is this very process, or IPC is not allowed; reason
            CUDA_IPC_UNAVAILABLE.
    """

    def __init__(self, handle: bytes, size_bytes: int, device_index: int) -> None:
        if len(handle) != HANDLE_BYTES:
            raise InvalidInput(f"a handle of {len(handle)} bytes", field="handle")
        if size_bytes <= 0:
            raise InvalidInput(f"{size_bytes} bytes of device memory", field="size_bytes")
        require()
        module = runtime()
        form = module.cudaIpcMemHandle_t()
        ctypes.memmove(form.getPtr(), handle, HANDLE_BYTES)
        try:
            with current_device(device_index):
                address = call("cudaIpcOpenMemHandle", form, module.cudaIpcMemLazyEnablePeerAccess)
        except WorldlineError as error:
            raise _no_ipc("import", error) from error
        super().__init__(int(address), size_bytes, device_index, "cudaIpcCloseMemHandle")


def _release(name: str, address: int, device_index: int) -> None:
    with current_device(device_index):
        call(name, address)


def _no_ipc(what: str, error: WorldlineError) -> Unavailable:
    return Unavailable(
        f"device memory cannot be {what}ed: {error.message}", reason="CUDA_IPC_UNAVAILABLE"
    )
