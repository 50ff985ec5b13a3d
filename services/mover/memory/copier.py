"""Copier: between the memory of GPUs and pinned memory, each way on a stream of its own."""

from __future__ import annotations

import ctypes
from typing import TypeGuard

from services.mover.transport.base import Buffer
from worldline.cuda import late
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.stream import Stream
from worldline.devicename import cuda_index
from worldline.errors import DeadlineExceeded

#: A staged chunk takes a millisecond; a device that needs this long has failed.
_COPY_S = 10.0


class CudaCopier:
    """Copies for some GPUs of this process, by name (`cuda:0`). May be used from any thread.

    Raises:
        Unavailable: there is no such GPU.
    """

    def __init__(self, device_names: tuple[str, ...]) -> None:
        indices = [index for name in device_names if (index := cuda_index(name)) is not None]
        self._out = {index: Stream(index) for index in indices}
        self._in = {index: Stream(index) for index in indices}

    def rests_on_device(self, buffer: Buffer) -> bool:
        """Whether these are bytes of a GPU."""
        return _on_device(buffer)

    def to_host(self, source: Buffer, target: memoryview) -> None:
        """Copy; returns when the bytes are there."""
        if _on_device(source):
            _copy(self._out[source.device_index], _address(target), source.address, source.nbytes)

    def to_device(self, source: memoryview, target: Buffer) -> None:
        """Copy; returns when the bytes are there."""
        if _on_device(target):
            _copy(self._in[target.device_index], target.address, _address(source), target.nbytes)

    def close(self) -> None:
        """Give the streams back."""
        for stream in (*self._out.values(), *self._in.values()):
            stream.close()


def _on_device(buffer: Buffer) -> TypeGuard[DeviceBuffer]:
    return isinstance(buffer, DeviceBuffer)


def _copy(stream: Stream, target_address: int, source_address: int, size_bytes: int) -> None:
    stream.copy(target_address, source_address, size_bytes)
    try:
        stream.wait(_COPY_S)
    except DeadlineExceeded:
        late.leave(stream)
        raise


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) if view.nbytes else 0
