"""Fake CUDA: the runtime's functions over host memory, so that what calls them is tested anywhere.

Stands in for the module `cuda.bindings.runtime`, below everything in `worldline.cuda`. Work that
is queued on a stream is done only when somebody asks or waits for the stream, as late as a device
may do it: whoever reads without waiting reads the old bytes. Kernels are not run: digests come
from `HostReadingDigester`, and zeros are found by `HostReadingFinder`.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from worldline.cuda import availability, devices, runtime
from worldline.state.digest import GRANULE_BYTES, Digester
from worldline.state.layout import Layout
from worldline.state.manifest import Digests

Work = Callable[[], None]
_numbers = itertools.count(1)


class Status(int):
    """A cudaError_t."""


OK, OUT_OF_MEMORY, BAD_DEVICE, NOT_READY = Status(0), Status(2), Status(101), Status(600)


class _Handle:
    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(64)

    def getPtr(self) -> int:  # noqa: N802 - the binding's name
        return ctypes.addressof(self._bytes)


class FakeRuntime(types.ModuleType):
    """`device_count` GPUs of `memory_bytes` each; all are NVLink-less peers."""

    cudaStreamNonBlocking = 1  # noqa: N815 - the binding's names
    cudaEventDisableTiming = 2  # noqa: N815
    cudaEventDefault = 0  # noqa: N815
    cudaHostAllocPortable = 1  # noqa: N815
    cudaIpcMemLazyEnablePeerAccess = 1  # noqa: N815
    cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyDefault=4)  # noqa: N815
    cudaIpcMemHandle_t = _Handle  # noqa: N815

    def __init__(self, device_count: int = 2, memory_bytes: int = 1 << 30) -> None:
        super().__init__("cuda.bindings.runtime")
        self.device_count = device_count
        self.memory_bytes = memory_bytes
        self.device = 0
        #: Live allocations by address: the memory, and the device, -1 for the host's.
        self.allocations: dict[int, tuple[mmap.mmap, int]] = {}
        self.exported: dict[bytes, int] = {}
        self.opened: list[int] = []
        self.streams: dict[int, list[Work]] = {}
        #: By event: the stream that it was last recorded in, until its point there is reached.
        self.events: dict[int, int | None] = {}
        #: Whether the devices do nothing of what they have been given.
        self.hangs = False

    # --- devices ---

    def cudaGetDeviceCount(self):  # noqa: N802
        return OK, self.device_count

    def cudaGetDevice(self):  # noqa: N802
        return OK, self.device

    def cudaSetDevice(self, index):  # noqa: N802
        if not 0 <= index < self.device_count:
            return (BAD_DEVICE,)
        self.device = index
        return (OK,)

    def cudaGetDeviceProperties(self, index):  # noqa: N802
        return OK, types.SimpleNamespace(
            pciDomainID=0xFFFF,
            pciBusID=index,
            pciDeviceID=0,
            name=b"Fake GPU",
            totalGlobalMem=self.memory_bytes,
            major=9,
            minor=0,
            multiProcessorCount=132,
            uuid=types.SimpleNamespace(bytes=bytes([index]) * 16),
        )

    def cudaDeviceCanAccessPeer(self, one, other):  # noqa: N802
        return OK, 1

    def cudaDriverGetVersion(self):  # noqa: N802
        return OK, 13000

    def cudaGetLastError(self):  # noqa: N802
        return (OK,)

    def cudaGetErrorString(self, status):  # noqa: N802
        return OK, b"it failed"

    def cudaGetErrorName(self, status):  # noqa: N802
        return OK, b"cudaErrorFake"

    # --- memory ---

    def used_bytes(self, device: int) -> int:
        return sum(len(memory) for memory, where in self.allocations.values() if where == device)

    def cudaMalloc(self, size_bytes):  # noqa: N802
        if self.used_bytes(self.device) + size_bytes > self.memory_bytes:
            return OUT_OF_MEMORY, 0
        return self._allocate(size_bytes, self.device)

    def cudaHostAlloc(self, size_bytes, flags):  # noqa: N802
        return self._allocate(size_bytes, -1)

    def _allocate(self, size_bytes: int, device: int):
        memory = mmap.mmap(-1, size_bytes)
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        self.allocations[address] = memory, device
        return OK, address

    def cudaFree(self, address):  # noqa: N802
        del self.allocations[address]
        return (OK,)

    cudaFreeHost = cudaFree  # noqa: N815

    def cudaMemGetInfo(self):  # noqa: N802
        free_bytes = self.memory_bytes - self.used_bytes(self.device)
        return OK, free_bytes, self.memory_bytes

    def cudaIpcGetMemHandle(self, address):  # noqa: N802
        handle = _Handle()
        name = address.to_bytes(8, "little") * 8
        ctypes.memmove(handle.getPtr(), name, 64)
        self.exported[name] = address
        return OK, handle

    def cudaIpcOpenMemHandle(self, handle, flags):  # noqa: N802
        address = self.exported[ctypes.string_at(handle.getPtr(), 64)]
        self.opened.append(address)
        return OK, address

    def cudaIpcCloseMemHandle(self, address):  # noqa: N802
        self.opened.remove(address)
        return (OK,)

    # --- streams ---

    def cudaStreamCreateWithFlags(self, flags):  # noqa: N802
        number = next(_numbers)
        self.streams[number] = []
        return OK, number

    def cudaStreamDestroy(self, stream):  # noqa: N802
        # None: of a former fake, where it was left to the collector.
        queue = self.streams.pop(stream, None)
        if queue and self.hangs:
            self.streams[stream] = queue  # what was queued still runs, when the device goes on
        return (OK,)

    def cudaMemcpyAsync(self, target, source, size_bytes, kind, stream):  # noqa: N802
        self.streams[stream].append(lambda: ctypes.memmove(target, source, size_bytes))
        return (OK,)

    def cudaMemsetAsync(self, address, value, size_bytes, stream):  # noqa: N802
        self.streams[stream].append(lambda: ctypes.memset(address, value, size_bytes))
        return (OK,)

    def cudaStreamQuery(self, stream):  # noqa: N802
        queue = self.streams[stream]
        if self.hangs and queue:
            return (NOT_READY,)
        while queue:
            queue.pop(0)()
        return (OK,)

    # --- events ---

    def cudaEventCreateWithFlags(self, flags):  # noqa: N802
        number = next(_numbers)
        self.events[number] = None
        return OK, number

    def cudaEventDestroy(self, event):  # noqa: N802
        self.events.pop(event, None)
        return (OK,)

    def cudaEventRecord(self, event, stream):  # noqa: N802
        self.events[event] = stream
        self.streams[stream].append(lambda: self._reach(event))
        return (OK,)

    def _reach(self, event: int) -> None:
        if event in self.events:  # and not destroyed meanwhile
            self.events[event] = None

    def cudaEventQuery(self, event):  # noqa: N802
        if self.hangs and self.events[event] is not None:
            return (NOT_READY,)
        while (stream := self.events[event]) is not None:
            self.streams[stream].pop(0)()
        return (OK,)

    def cudaStreamWaitEvent(self, stream, event, flags):  # noqa: N802
        self.streams[stream].append(lambda: self.cudaEventQuery(event))
        return (OK,)


def bytes_at(address: int, size_bytes: int) -> memoryview:
    """Memory of the fake, writable."""
    return memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B")


class HostReadingDigester:
    """`CudaDigester` without a GPU: reads the fake's memory on the host."""

    def __init__(
        self, layout: Layout, device_index: int, granule_bytes: int = GRANULE_BYTES
    ) -> None:
        self._digester = Digester(layout, granule_bytes)

    @property
    def granule_count(self) -> int:
        return self._digester.granule_count

    @property
    def is_idle(self) -> bool:
        return True

    def update(self, first_granule: int, granule_count: int, run: Any, after: Any = None) -> None:
        if after is not None:
            after.wait(10.0)
        self._digester.update(first_granule, granule_count, bytes_at(run.address, run.nbytes))

    def segment_crcs(self, timeout_s: float = 10.0) -> Any:
        return self._digester.segment_crcs()

    def digests(self, timeout_s: float = 10.0) -> Digests:
        return self._digester.digests()

    def wait(self, timeout_s: float = 10.0) -> None:
        pass

    def close(self) -> None:
        pass


class HostReadingFinder:
    """`ZeroFinder` without a GPU: reads the fake's memory on the host."""

    def reserve(self, size_bytes: int) -> None:
        pass

    def begin(self, run: Any, among: Any = None) -> HostReadingLook:
        return HostReadingLook(run, among)


class HostReadingLook:
    """`Look` without a GPU: reads when it is asked, as late as a device may."""

    is_done = True

    def __init__(self, run: Any, among: Any) -> None:
        self._run = run
        self._among = among

    def found(self, timeout_s: float = 10.0) -> Any:
        granules = range(0, self._run.nbytes, GRANULE_BYTES)
        data = np.frombuffer(bytes_at(self._run.address, self._run.nbytes), np.uint8)
        zero = np.array([not data[at : at + GRANULE_BYTES].any() for at in granules], bool)
        return zero if self._among is None else zero & self._among

    def wait(self, timeout_s: float = 10.0) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def fake_cuda(
    patch: pytest.MonkeyPatch, device_count: int = 2, memory_bytes: int = 1 << 30
) -> Iterator[FakeRuntime]:
    """Every process-wide answer about CUDA comes from the fake until the end."""
    fake = FakeRuntime(device_count, memory_bytes)
    remembered = (
        runtime.runtime,
        runtime.core,
        availability.unavailable_reason,
        devices.devices,
    )

    def forget() -> None:
        for function in remembered:
            function.cache_clear()

    patch.setitem(sys.modules, "cuda.bindings.runtime", fake)
    patch.setitem(sys.modules, "cuda.core", types.ModuleType("cuda.core"))
    for user in (
        "services.mover.digesting",
        "services.mover.crossings",
        "services.engine.cudaslot",
    ):
        patch.setattr(f"{user}.CudaDigester", HostReadingDigester)
    finder = HostReadingFinder()
    patch.setattr("services.mover.memory.cuda.zero_finder", lambda index: finder)
    forget()
    try:
        yield fake
    finally:
        patch.undo()
        forget()
