"""Device tampering: one bit of a slot on a GPU, changed at a chosen moment of a move.

The same hooks serve movers within a test, over a fake CUDA, and mover processes on real GPUs
(`tests.gpu.tampering_mover`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from services.mover.chunking import Chunk
from services.mover.digesting import DeviceDigest
from services.mover.memory.copier import CudaCopier
from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.stream import Stream

#: A copy of one chunk takes milliseconds; a device that needs this long has failed.
WAIT_S = 60.0

PINNED_AT_THE_SOURCE = "pinned-at-the-source"
PINNED_AT_THE_TARGET = "pinned-at-the-target"
SOURCE_AFTER_ITS_DIGEST = "source-after-its-digest"
IN_FLIGHT = "in-flight"
LANDED = "landed"
#: Where a move's bytes are staged through pinned memory at both ends.
STAGED_PLACES = (
    PINNED_AT_THE_SOURCE,
    PINNED_AT_THE_TARGET,
    SOURCE_AFTER_ITS_DIGEST,
    LANDED,
)
#: Where the wire takes them from device to device.
DIRECT_PLACES = (SOURCE_AFTER_ITS_DIGEST, IN_FLIGHT, LANDED)
#: Whose slot the bit is in, of movers `a` and `b`.
SIDES = {
    PINNED_AT_THE_SOURCE: "a",
    PINNED_AT_THE_TARGET: "b",
    SOURCE_AFTER_ITS_DIGEST: "a",
    IN_FLIGHT: "a",
    LANDED: "b",
}


@dataclass(frozen=True, slots=True)
class Change:
    """Bit `bit` of the byte that the slot has at `address`."""

    place: str
    address: int
    bit: int


def flip_on_device(address: int, bit: int, device_index: int) -> None:
    """Change one bit of device memory; it is changed when this returns."""
    stream, byte = Stream(device_index), np.zeros(1, np.uint8)
    stream.copy(byte.ctypes.data, address, 1)
    stream.wait(WAIT_S)
    byte[0] ^= 1 << bit
    stream.copy(address, byte.ctypes.data, 1)
    stream.wait(WAIT_S)
    stream.close()


class DeviceTamper:
    """Makes the change that is wanted, once, when its moment comes."""

    def __init__(self, wanted: Callable[[], Change | None], done: Callable[[], None]) -> None:
        self._wanted = wanted
        self._done = done

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on every copy and digest in this process asks."""
        to_host, to_device, read = CudaCopier.to_host, CudaCopier.to_device, DeviceDigest.read

        def copy_out(copier: CudaCopier, source: Buffer, target: memoryview) -> None:
            to_host(copier, source, target)
            self._at(PINNED_AT_THE_SOURCE, source, target)

        def copy_in(copier: CudaCopier, source: memoryview, target: Buffer) -> None:
            self._at(PINNED_AT_THE_TARGET, target, source)
            to_device(copier, source, target)

        def digest(own: DeviceDigest, chunk: Chunk) -> None:
            part = own._memory.part(chunk.offset_bytes, chunk.size_bytes)
            self._at(LANDED, part)
            read(own, chunk)
            if self._holds(SOURCE_AFTER_ITS_DIGEST, part):
                own._digester.wait()
                self._at(SOURCE_AFTER_ITS_DIGEST, part)

        patch.setattr(CudaCopier, "to_host", copy_out)
        patch.setattr(CudaCopier, "to_device", copy_in)
        patch.setattr(DeviceDigest, "read", digest)

    def in_flight(self, part: DeviceBuffer) -> DeviceBuffer | None:
        """A copy of these bytes with the bit changed, if it is wanted now."""
        change = self._holds(IN_FLIGHT, part)
        if change is None:
            return None
        memory = DeviceMemory(part.nbytes, part.device_index)
        stream = Stream(part.device_index)
        stream.copy(memory.address, part.address, part.nbytes)
        stream.wait(WAIT_S)
        stream.close()
        at_bytes = change.address - part.address
        flip_on_device(memory.address + at_bytes, change.bit, part.device_index)
        self._done()
        return memory.whole

    def _holds(self, place: str, part: Buffer) -> Change | None:
        change = self._wanted()
        if change is None or change.place != place or not isinstance(part, DeviceBuffer):
            return None
        return change if 0 <= change.address - part.address < part.nbytes else None

    def _at(self, place: str, part: Buffer, image: memoryview | None = None) -> None:
        """Change the bit of a part of the slot, or of an image of the part."""
        change = self._holds(place, part)
        if change is None or not isinstance(part, DeviceBuffer):
            return
        if image is None:
            flip_on_device(change.address, change.bit, part.device_index)
        else:
            image[change.address - part.address] ^= 1 << change.bit
        self._done()


class TamperedEndpoint(Endpoint):
    """Sends from devices a turn of the loop later: digests begin in between, as told."""

    def __init__(self, inner: Endpoint, tamper: DeviceTamper) -> None:
        self.inner = inner
        self._tamper = tamper
        self._own: set[Request] = set()

    @property
    def alive(self) -> bool:
        return self.inner.alive

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        if not isinstance(buffer, DeviceBuffer):
            return self.inner.send(buffer, tag, reader)
        request = Request("send", tag, buffer.nbytes)
        self._own.add(request)
        asyncio.get_running_loop().call_soon(self._send, request, buffer)
        return request

    def _send(self, request: Request, buffer: DeviceBuffer) -> None:
        changed: Any = self._tamper.in_flight(buffer) or buffer
        carried = self.inner.send(changed, request.tag)

        def end(_: object) -> None:
            self._own.discard(request)
            request.end(carried.error)

        carried.ended.add_done_callback(end)

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        return self.inner.receive(buffer, tag, reader)

    def lanes(self) -> tuple[str, ...]:
        return self.inner.lanes()

    async def close(self) -> None:
        await self.inner.close()

    async def abort(self) -> None:
        await self.inner.abort()
        for request in list(self._own):
            await request.settled()
