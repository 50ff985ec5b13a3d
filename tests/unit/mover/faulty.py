"""Faulty transports: a real one inside, one fault at a chosen chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.mover.chunking import CHUNK_INDEX_BITS
from services.mover.go import GO_INDEX
from services.mover.transport.base import Buffer, Endpoint, Reader, Request, Transport

#: Decides about one request: (endpoint, chunk index, view) -> what to send instead, or None for
#: a request that is posted nowhere and never ends by itself.
SendHook = Callable[[int, memoryview], memoryview | None]


class _Silent(Request):
    """A request that nothing will ever complete, until its endpoint is aborted."""


class FaultyEndpoint(Endpoint):
    def __init__(self, inner: Endpoint, owner: FaultyTransport) -> None:
        self.inner = inner
        self._owner = owner
        self.silent: list[Request] = []

    @property
    def alive(self) -> bool:
        return self.inner.alive

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        assert isinstance(buffer, memoryview)
        changed = self._owner.on_send(tag % (1 << CHUNK_INDEX_BITS), buffer)
        if changed is None:
            request = _Silent("send", tag, buffer.nbytes)
            self.silent.append(request)
            return request
        # The reader reads the source's own memory, not the copy on the wire.
        return self.inner.send(changed, tag, reader)

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        return self.inner.receive(buffer, tag, reader)

    def lanes(self) -> tuple[str, ...]:
        return self.inner.lanes()

    async def close(self) -> None:
        await self.inner.close()

    async def abort(self) -> None:
        await self.inner.abort()
        await self._owner.terminal_allowed.wait()
        for request in self.silent:
            request.end(None)


class FaultyTransport(Transport):
    """Delegates everything; `on_send` may change or swallow a chunk.

    While `terminal_allowed` is clear, an abort does not return: the transport has not yet said
    that the requests are terminal.
    """

    def __init__(self, inner: Transport, on_send: SendHook = lambda _, view: view) -> None:
        self.inner = inner
        self.name = inner.name
        self.on_send = on_send
        self.terminal_allowed = asyncio.Event()
        self.terminal_allowed.set()
        #: What `connect` has given out.
        self.used: list[FaultyEndpoint] = []

    @property
    def address(self) -> bytes:
        return self.inner.address

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def watch(self) -> None:
        await self.inner.watch()

    async def register(self, buffer: Buffer, descriptor: int | None = None) -> None:
        await self.inner.register(buffer, descriptor)

    async def unregister(self, buffer: Buffer) -> None:
        await self.inner.unregister(buffer)

    async def connect(self, address: bytes) -> Endpoint:
        endpoint = FaultyEndpoint(await self.inner.connect(address), self)
        self.used.append(endpoint)
        return endpoint

    async def park(self, endpoint: Endpoint) -> None:
        assert isinstance(endpoint, FaultyEndpoint)
        await self.inner.park(endpoint.inner)

    def census(self) -> dict[str, int]:
        return self.inner.census()


def flip_bit(chunk: int, byte: int, bit: int = 0) -> SendHook:
    """One bit of one chunk differs on the wire; the source's memory does not."""

    def hook(index: int, view: memoryview) -> memoryview:
        if index != chunk:
            return view
        copy = bytearray(view)
        copy[byte] ^= 1 << bit
        return memoryview(copy)

    return hook


def stop_after(chunks: int) -> SendHook:
    """The go is sent; chunks from here on never are, and their requests never end."""
    return lambda index, view: view if index < chunks or index == GO_INDEX else None
