"""Transport: the contract between the mover and whatever carries its bytes.

Two implementations: `ucx` for real work, `memory` for tests; tests/conformance holds both to
what is written here.

Buffers. From the moment `send` or `receive` is called until `Request.terminal` is true the
transport may read (send) or write (receive) it. The caller keeps the memory alive and
leaves it alone: a sender may read it, a receiver may not touch it at all. After `terminal` the
transport never touches it again.

Outcomes. A request ends once: its bytes are complete, or `wait()` raises `TransferFailed`.
A cancelled, truncated or orphaned request always raises; none ever returns as if it had been
done. A send that ends well says only that the buffer may be reused: what the receiver holds,
only the receiver's digest says.

Readers. Whoever posts a request may have its bytes read on the way, by the thread that moves them
and while they are in its cache: `reader(offset, size)` is called for consecutive pieces of the
buffer, for all of them before the request ends well. A sender's bytes may be read before, while or
after they travel, a receiver's once they are there. A reader that raises fails its request.

Waits. Cancelling the task that waits, or a timeout around it, cancels *the wait* and nothing
else; the request goes on and may still write. To end requests, `abort()` their endpoint and
await it: when it returns, each of them is terminal.

Endpoints. `connect` gives one transfer the exclusive use of an endpoint, so that aborting one
transfer never ends another. A finished transfer parks its endpoint for the next `connect` to
the same address. A peer that restarts has another address, whatever its name.

Closing and aborting are different: `close()` first waits for every request and flushes, so that
the last send is not lost; `abort()` drops what is in flight.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from worldline.errors import TransferFailed


class DeviceBuffer(Protocol):
    """A run of bytes in device memory, as `worldline.cuda` hands it out."""

    @property
    def nbytes(self) -> int:
        """Length."""

    @property
    def address(self) -> int:
        """Of the first byte, in the device's address space."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What the transport reads of it (CUDA array interface, version 3)."""


#: What is sent, received and registered: bytes of the host, or of a device.
Buffer: TypeAlias = memoryview | DeviceBuffer

#: Reads bytes [offset, offset + size) of the buffer of a request; see Readers above.
Reader: TypeAlias = Callable[[int, int], None]

#: Chunk i of a transfer travels under tag_base + i.
TAG_MAX = (1 << 64) - 1


class Request:
    """One send or receive. Ended by its transport, on the event loop's thread."""

    def __init__(self, kind: str, tag: int, size_bytes: int) -> None:
        self.kind = kind
        self.tag = tag
        self.size_bytes = size_bytes
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: TransferFailed | None = None

    @property
    def terminal(self) -> bool:
        """Whether the transport is done with the buffer, well or not."""
        return self._ended.done()

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the request is terminal, without an exception; for `asyncio.wait` only."""
        return self._ended

    @property
    def error(self) -> TransferFailed | None:
        """Why it failed; None while it runs and when it ended well."""
        return self._error

    async def wait(self) -> None:
        """Return when the bytes are complete. A cancelled wait leaves the request running.

        Raises:
            TransferFailed: cancelled, truncated, or the peer is gone.
        """
        await self.settled()
        if self._error is not None:
            raise self._error

    async def settled(self) -> None:
        """Return when the request is terminal, however it ended."""
        await asyncio.shield(self._ended)

    def end(self, error: TransferFailed | None) -> None:
        """For transports: the buffer will not be touched again."""
        if not self._ended.done():
            self._error = error
            self._ended.set_result(None)


class Endpoint(ABC):
    """A path to one peer, used by one transfer at a time."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once closed, aborted, or the peer is known to be gone."""

    @abstractmethod
    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """Post a send of the whole buffer.

        Never blocks and never raises for the wire's sake: a dead endpoint gives a request that
        has already failed.
        """

    @abstractmethod
    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """Post a receive of exactly `buffer.nbytes` bytes.

        A longer message raises `TransferFailed` and leaves the buffer in an unknown state. Both
        ends know each message's length beforehand; that a shorter one was sent, the digest
        says, not this layer.
        """

    @abstractmethod
    def lanes(self) -> tuple[str, ...]:
        """What carries the bytes, sorted, as `transport/device`."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for every posted request, flush, then close. Idempotent.

        Raises:
            TransferFailed: a request failed or the peer died before all was flushed.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Drop what is in flight and close. Returns once every request is terminal. Idempotent."""


class Transport(ABC):
    """One process's attachment to the wire. Used from one event loop."""

    #: Short name, for logs: `ucx`, `memory`.
    name: str

    @property
    @abstractmethod
    def address(self) -> bytes:
        """What a peer passes to its `connect`; no two starts have the same."""

    @abstractmethod
    async def start(self) -> None:
        """Bring the wire up.

        Raises:
            Unavailable: it cannot work here; `field` names the setting at fault.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Abort every endpoint, wait for their requests, release everything."""

    @abstractmethod
    async def watch(self) -> None:
        """Wait until the transport has failed for good: whoever owns it had better end.

        Raises:
            Unavailable: it has; every request has ended by then, and none succeeds any more.
        """

    @abstractmethod
    async def register(self, buffer: Buffer, descriptor: int | None = None) -> None:
        """Pin and register memory, once, for as long as it serves as a slot.

        `descriptor` is that of the memory file which the buffer maps from its start, where it is
        one: a peer on this host may then read the buffer in place, of which it is told by `address`
        from now on.
        """

    @abstractmethod
    async def unregister(self, buffer: Buffer) -> None:
        """Undo `register`; no request may be outstanding on the memory."""

    @abstractmethod
    async def connect(self, address: bytes) -> Endpoint:
        """An endpoint to a peer, parked or new, for exclusive use.

        Raises:
            TransferFailed: the address is malformed or no lane reaches it.
            Unavailable: the transport has failed, see `watch`.
        """

    @abstractmethod
    async def park(self, endpoint: Endpoint) -> None:
        """Give back an endpoint whose requests all ended well; others are aborted."""

    @abstractmethod
    def census(self) -> dict[str, int]:
        """`endpoints` in use, `endpoints_parked`, `requests_outstanding`, `registrations`."""
