"""Staged: a transport whose every endpoint stages, with host memory in the device's place."""

from __future__ import annotations

import mmap

from services.mover.staged import StagedEndpoint
from services.mover.staging import Staging
from services.mover.transport.base import Buffer, Endpoint, Transport

RINGS = 6


class HostPinned:
    """Stands for pinned memory. Its pages cost nothing until they are used."""

    def __init__(self, size_bytes: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size_bytes))

    def close(self) -> None:
        self.view.release()


class HostCopier:
    """Takes every buffer for a device's."""

    def __init__(self) -> None:
        self.copied_bytes = 0

    def rests_on_device(self, buffer: Buffer) -> bool:
        return True

    def to_host(self, source: Buffer, target: memoryview) -> None:
        assert isinstance(source, memoryview)
        self._copy(source, target)

    def to_device(self, source: memoryview, target: Buffer) -> None:
        assert isinstance(target, memoryview)
        self._copy(source, target)

    def close(self) -> None:
        pass

    def _copy(self, source: memoryview, target: memoryview) -> None:
        assert source.nbytes == target.nbytes
        if source.nbytes:
            target.cast("B")[:] = source.cast("B")
        self.copied_bytes += source.nbytes


def host_staging(
    rings: int = RINGS, buffer_bytes: int = 8 << 20, buffers_per_ring: int = 32
) -> Staging:
    """Rings as deep as the suite's windows: its chunks come in any order, a mover's do not."""
    return Staging(
        HostCopier(),
        HostPinned,
        rings=rings,
        buffer_bytes=buffer_bytes,
        buffers_per_ring=buffers_per_ring,
    )


class StagedTransport(Transport):
    """Every endpoint of another transport, staged."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.name = inner.name
        self.staging = host_staging()
        self._staged: dict[Endpoint, StagedEndpoint] = {}

    @property
    def address(self) -> bytes:
        return self.inner.address

    async def start(self) -> None:
        await self.inner.start()
        self.staging.start()

    async def stop(self) -> None:
        for endpoint in self._staged.values():
            await endpoint.abort()
        await self.inner.stop()
        assert len(self.staging.leaving) == len(self.staging.arriving) == RINGS
        self.staging.close()

    async def watch(self) -> None:
        await self.inner.watch()

    async def register(self, buffer: Buffer, descriptor: int | None = None) -> None:
        await self.inner.register(buffer, descriptor)

    async def unregister(self, buffer: Buffer) -> None:
        await self.inner.unregister(buffer)

    async def connect(self, address: bytes) -> Endpoint:
        endpoint = await self.inner.connect(address)
        staged = self._staged.get(endpoint)
        if staged is None or not staged.alive:
            staged = self._staged[endpoint] = StagedEndpoint(endpoint, self.staging)
        return staged

    async def park(self, endpoint: Endpoint) -> None:
        inner = await self.staging.unwrap(endpoint)
        if inner is not None:
            await self.inner.park(inner)

    def census(self) -> dict[str, int]:
        return self.inner.census()
