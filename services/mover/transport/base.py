"""Transport: the contract between the mover and whatever carries its bytes.

Two implementations: `ucx` for real work, `memory` for tests; tests/conformance holds both to
what is written here.

Buffers. From the moment `send` or `receive` is called until `Request.terminal` is true the
transport may read (send) or write (receive) the view. The caller keeps the memory alive and
leaves it alone: a sender may read it, a receiver may not touch it at all. After `terminal` the
transport never touches it again.

Outcomes. A request ends once: its bytes are complete, or `wait()` raises `TransferFailed`.
A cancelled, truncated or orphaned request always raises; none ever returns as if it had been
done. A send that ends well says only that the buffer may be reused: what the receiver holds,
only the receiver's digest says.

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

from worldline.errors import TransferFailed

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
    def send(self, view: memoryview, tag: int) -> Request:
        """Post a send of the whole view.

        Never blocks and never raises for the wire's sake: a dead endpoint gives a request that
        has already failed.
        """

    @abstractmethod
    def receive(self, view: memoryview, tag: int) -> Request:
        """Post a receive of exactly `view.nbytes` bytes.

        A longer message raises `TransferFailed` and leaves the view in an unknown state. Both
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
        """What a peer passes to its `connect`; new at every start."""

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
    async def register(self, view: memoryview) -> None:
        """Pin and register memory, once, for as long as it serves as a slot."""

    @abstractmethod
    async def unregister(self, view: memoryview) -> None:
        """Undo `register`; no request may be outstanding on the memory."""

    @abstractmethod
    async def connect(self, address: bytes) -> Endpoint:
        """An endpoint to a peer, parked or new, for exclusive use.

        Raises:
            TransferFailed: the address is malformed or no lane reaches it.
        """

    @abstractmethod
    async def park(self, endpoint: Endpoint) -> None:
        """Give back an endpoint whose requests all ended well; others are aborted."""

    @abstractmethod
    def census(self) -> dict[str, int]:
        """`endpoints` in use, `endpoints_parked`, `requests_outstanding`, `registrations`."""
