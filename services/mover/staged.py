"""Staged endpoint: device memory over an endpoint that carries only host memory.

A chunk is copied to a pinned buffer and sent from there, or received there and copied to the
device. Two buffers per transfer and direction: one chunk is copied while the one before it is on
the wire. Chunks are posted in the same order at both ends, as every transfer does; otherwise each
end could hold all its buffers for chunks that the other has not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from services.mover.stock import Stock
from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from worldline.errors import TransferFailed

#: What is said of the lanes of such an endpoint, beside what carries the bytes.
STAGED_LANE = "staged/pinned"

#: The buffers of one transfer in one direction.
Ring = Stock[memoryview]


class Copier(Protocol):
    """Copies between device and pinned memory; blocking, from any thread."""

    def rests_on_device(self, buffer: Buffer) -> bool:
        """Whether the buffer has to be staged; the others pass through."""

    def to_host(self, source: Buffer, target: memoryview) -> None:
        """Copy; returns when the bytes are there."""

    def to_device(self, source: memoryview, target: Buffer) -> None:
        """Copy; returns when the bytes are there."""

    def close(self) -> None:
        """Nothing is copied any more."""


class Supplies(Protocol):
    """What the staged endpoints of one mover share."""

    buffer_bytes: int
    copier: Copier
    #: Rings for transfers that leave, and for those that arrive. They are apart: a transfer that
    #: leaves may wait for one, since all who have one get on; one that arrives is refused.
    leaving: Stock[Ring]
    arriving: Stock[Ring]

    async def copy(self, work: Callable[[], None]) -> None:
        """Run a copy in a thread, to its end."""


class StagedEndpoint(Endpoint):
    """Wraps an endpoint for one transfer at a time, like the endpoint itself."""

    def __init__(self, inner: Endpoint, supplies: Supplies) -> None:
        self.inner = inner
        self._supplies = supplies
        self._open = True
        self._failed = False
        self._requests: set[Request] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those of the tasks that have not touched any memory yet.
        self._waiting: set[asyncio.Task[None]] = set()
        self._leaving: Ring | None = None
        self._arriving: Ring | None = None
        self._turn = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """See `Endpoint.alive`."""
        return self._open and not self._failed and self.inner.alive

    @property
    def is_clean(self) -> bool:
        """Whether every request ended well, so that the endpoint may serve another transfer."""
        return self.alive and not self._requests

    def lanes(self) -> tuple[str, ...]:
        """Those of the inner endpoint, and that the bytes are staged."""
        return tuple(sorted((*self.inner.lanes(), STAGED_LANE)))

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """See `Endpoint.send`."""
        if not self._supplies.copier.rests_on_device(buffer):
            return self.inner.send(buffer, tag, reader)
        request = self._request("send", buffer, tag)
        if not request.terminal:
            self._begin(request, lambda: self._send(request, buffer))
        return request

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """See `Endpoint.receive`; fails with STAGING_BUSY where too many transfers arrive."""
        if not self._supplies.copier.rests_on_device(buffer):
            return self.inner.receive(buffer, tag, reader)
        request = self._request("receive", buffer, tag)
        if request.terminal:
            return request
        if self._arriving is None:
            self._arriving = self._supplies.arriving.take_now()
        if self._arriving is None:
            self._end(
                request,
                TransferFailed(
                    "every staging ring of this mover is taken by a transfer that arrives; raise "
                    "staging_rings, or try again",
                    reason="STAGING_BUSY",
                ),
            )
            return request
        ring = self._arriving
        self._begin(request, lambda: self._receive(request, buffer, ring))
        return request

    async def close(self) -> None:
        """See `Endpoint.close`."""
        if not self._open:
            return
        requests = list(self._requests)
        for request in requests:
            await request.settled()
        errors = [request.error for request in requests if request.error is not None]
        try:
            if errors or self._failed:
                raise errors[0] if errors else TransferFailed("a request has failed before")
            await self.inner.close()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """See `Endpoint.abort`."""
        self._open = False
        for task in list(self._waiting):
            task.cancel()
        await self.inner.abort()
        for request in list(self._requests):
            await request.settled()
        await self.leave()

    async def leave(self) -> None:
        """Give the rings back; every request must be terminal."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        leaving, self._leaving = self._leaving, None
        arriving, self._arriving = self._arriving, None
        if leaving is not None:
            self._supplies.leaving.give(leaving)
        if arriving is not None:
            self._supplies.arriving.give(arriving)

    # --- one request -------------------------------------------------------------------------

    def _request(self, kind: str, buffer: Buffer, tag: int) -> Request:
        request = Request(kind, tag, buffer.nbytes)
        self._requests.add(request)
        most_bytes = self._supplies.buffer_bytes
        if not self._open:
            closed = TransferFailed(f"{kind}: the endpoint is closed", reason="CANCELLED")
            self._end(request, closed)
        elif buffer.nbytes > most_bytes:
            self._end(
                request,
                TransferFailed(
                    f"{kind}: a chunk of {buffer.nbytes} bytes for staging buffers of {most_bytes}",
                    reason="CHUNK_EXCEEDS_STAGING",
                    field="chunk_bytes",
                ),
            )
        return request

    def _begin(
        self, request: Request, work: Callable[[], Coroutine[None, None, TransferFailed | None]]
    ) -> None:
        async def run() -> None:
            try:
                error = await work()
            except Exception as cause:
                error = _failed(request, cause)
            self._end(request, error)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._waiting.discard(task)
            if not request.terminal:  # cancelled, perhaps before its first step
                self._end(request, _aborted(request))

        task = asyncio.create_task(run(), name=f"staged-{request.kind}-{request.tag:x}")
        self._tasks.add(task)
        self._waiting.add(task)
        task.add_done_callback(done)

    async def _send(self, request: Request, source: Buffer) -> TransferFailed | None:
        async with self._turn:
            if self._leaving is None:
                self._leaving = await self._supplies.leaving.take()
        ring = self._leaving
        buffer = await ring.take()
        self._set_out()
        part = buffer[: request.size_bytes]
        try:
            await self._supplies.copy(lambda: self._supplies.copier.to_host(source, part))
            if not self._open:
                return _aborted(request)
            carried = self.inner.send(part, request.tag)
            await carried.settled()
        finally:
            ring.give(buffer)
        return carried.error

    async def _receive(self, request: Request, target: Buffer, ring: Ring) -> TransferFailed | None:
        buffer = await ring.take()
        self._set_out()
        part = buffer[: request.size_bytes]
        try:
            carried = self.inner.receive(part, request.tag)
            await carried.settled()
            if carried.error is None:
                await self._supplies.copy(lambda: self._supplies.copier.to_device(part, target))
        finally:
            ring.give(buffer)
        return carried.error

    def _set_out(self) -> None:
        """From here on the task touches memory, and is waited for instead of cancelled."""
        task = asyncio.current_task()
        if task is not None:
            self._waiting.discard(task)

    def _end(self, request: Request, error: TransferFailed | None) -> None:
        self._requests.discard(request)
        self._failed = self._failed or error is not None
        request.end(error)


def _aborted(request: Request) -> TransferFailed:
    return TransferFailed(f"{request.kind}: the endpoint was aborted", reason="CANCELLED")


def _failed(request: Request, error: Exception) -> TransferFailed:
    if isinstance(error, TransferFailed):
        return error
    return TransferFailed(f"{request.kind}: {error}", reason="STAGING_FAILED")
