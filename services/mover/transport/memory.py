"""Memory transport: the same contract within one process, for tests.

Peers find each other in a table of this process. A send is matched to a receive by tag, and the
bytes are copied in a later turn of the event loop, so that requests are outstanding for a while,
as on a real wire.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from services.mover.transport.base import Buffer, Endpoint, Reader, Request, Transport
from worldline.errors import InvalidInput, TransferFailed

_PREFIX = b"memory:"
_peers: dict[bytes, MemoryTransport] = {}
_numbers = itertools.count(1)


@dataclass
class _Posted:
    """A request with its buffer and the endpoint it was posted on."""

    request: Request
    view: memoryview
    endpoint: MemoryEndpoint
    reader: Reader | None

    def end(self) -> None:
        """Its bytes are where they should be."""
        error = None
        if self.reader is not None and self.view.nbytes:
            try:
                self.reader(0, self.view.nbytes)
            except Exception as cause:
                error = TransferFailed(f"{self.request.kind}: {cause!r}")
        self.request.end(error)


class MemoryEndpoint(Endpoint):
    """One transfer's path to a peer in the same process."""

    def __init__(self, transport: MemoryTransport, peer: bytes) -> None:
        self._transport = transport
        self.peer = peer
        self._open = True
        self.requests: list[Request] = []

    @property
    def alive(self) -> bool:
        """Whether both ends are still there."""
        return self._open and self.peer in _peers

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """See `Endpoint.send`."""
        posted = self._post("send", _host(buffer), tag, reader)
        if not posted.request.terminal:
            _peers[self.peer].arrive(posted)
        return posted.request

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """See `Endpoint.receive`."""
        posted = self._post("receive", _host(buffer), tag, reader)
        if not posted.request.terminal:
            self._transport.expect(posted)
        return posted.request

    def _post(self, kind: str, view: memoryview, tag: int, reader: Reader | None) -> _Posted:
        request = Request(kind, tag, view.nbytes)
        if not self.alive:
            request.end(TransferFailed(f"{kind}: the endpoint is closed or the peer is gone"))
        self.requests = [other for other in self.requests if not other.terminal]
        self.requests.append(request)
        return _Posted(request, view.cast("B") if view.nbytes else view, self, reader)

    def lanes(self) -> tuple[str, ...]:
        """Always the one."""
        return ("memory/self",)

    async def close(self) -> None:
        """See `Endpoint.close`."""
        if not self._open:
            return
        requests = list(self.requests)
        for request in requests:
            await request.settled()
        self._transport.forget(self)
        self._open = False
        for request in requests:
            if request.error is not None:
                raise request.error

    async def abort(self) -> None:
        """See `Endpoint.abort`."""
        self._open = False
        self.fail("the endpoint was aborted")
        for request in self.requests:
            await request.settled()
        self._transport.forget(self)

    def fail(self, why: str) -> None:
        """End every request that no copy has been scheduled for."""
        for transport in list(_peers.values()):
            transport.withdraw(self, why)


class MemoryTransport(Transport):
    """An attachment to this process's own table of peers."""

    name = "memory"

    def __init__(self) -> None:
        self._address = _PREFIX + str(next(_numbers)).encode()
        self._endpoints: set[MemoryEndpoint] = set()
        self._parked: list[MemoryEndpoint] = []
        self._registered: set[int] = set()
        self._expected: dict[int, list[_Posted]] = {}
        self._arrived: dict[int, list[_Posted]] = {}

    @property
    def address(self) -> bytes:
        """This peer's key in the table."""
        return self._address

    async def start(self) -> None:
        """Become reachable."""
        _peers[self._address] = self

    async def stop(self) -> None:
        """See `Transport.stop`."""
        for endpoint in [*self._endpoints, *self._parked]:
            await endpoint.abort()
        self.die()

    def die(self) -> None:
        """What a killed process looks like to its peers: gone, without a word."""
        _peers.pop(self._address, None)
        for peer in list(_peers.values()):
            peer.lose(self._address)
        for posted in itertools.chain(*self._expected.values(), *self._arrived.values()):
            posted.request.end(TransferFailed("the peer is gone"))
        self._expected, self._arrived = {}, {}

    def lose(self, address: bytes) -> None:
        """A peer has died: what is posted towards it fails."""
        for endpoint in [*self._endpoints, *self._parked]:
            if endpoint.peer == address:
                endpoint.fail("the peer is gone")

    async def watch(self) -> None:
        """It does not fail."""
        await asyncio.get_running_loop().create_future()

    async def register(self, buffer: Buffer, descriptor: int | None = None) -> None:
        """Only counted: there is no device to tell."""
        self._registered.add(_key(buffer))

    async def unregister(self, buffer: Buffer) -> None:
        """See `Transport.unregister`."""
        self._registered.discard(_key(buffer))

    async def connect(self, address: bytes) -> Endpoint:
        """See `Transport.connect`."""
        self._parked = [endpoint for endpoint in self._parked if endpoint.alive]
        for endpoint in self._parked:
            if endpoint.peer == address:
                self._parked.remove(endpoint)
                self._endpoints.add(endpoint)
                return endpoint
        if address not in _peers:
            raise TransferFailed("no such peer in this process", field="worker_address")
        endpoint = MemoryEndpoint(self, address)
        self._endpoints.add(endpoint)
        return endpoint

    async def park(self, endpoint: Endpoint) -> None:
        """See `Transport.park`."""
        if not isinstance(endpoint, MemoryEndpoint) or endpoint not in self._endpoints:
            return
        bad = any(request.error or not request.terminal for request in endpoint.requests)
        if bad or not endpoint.alive:
            await endpoint.abort()
            return
        self._endpoints.discard(endpoint)
        self._parked.append(endpoint)

    def forget(self, endpoint: MemoryEndpoint) -> None:
        """A closed endpoint no longer counts."""
        self._endpoints.discard(endpoint)
        if endpoint in self._parked:
            self._parked.remove(endpoint)

    def census(self) -> dict[str, int]:
        """See `Transport.census`."""
        requests = [r for e in (*self._endpoints, *self._parked) for r in e.requests]
        return {
            "endpoints": len(self._endpoints),
            "endpoints_parked": sum(endpoint.alive for endpoint in self._parked),
            "requests_outstanding": sum(not request.terminal for request in requests),
            "registrations": len(self._registered),
        }

    def expect(self, posted: _Posted) -> None:
        """A receive was posted here: match it or keep it."""
        self._match(posted, self._arrived, self._expected)

    def arrive(self, posted: _Posted) -> None:
        """A peer's send reached this transport: match it or keep it."""
        self._match(posted, self._expected, self._arrived)

    def _match(
        self, posted: _Posted, others: dict[int, list[_Posted]], own: dict[int, list[_Posted]]
    ) -> None:
        waiting = others.get(posted.request.tag)
        if not waiting:
            own.setdefault(posted.request.tag, []).append(posted)
            return
        other = waiting.pop(0)
        if not waiting:
            del others[posted.request.tag]
        send, receive = (posted, other) if posted.request.kind == "send" else (other, posted)
        asyncio.get_running_loop().call_soon(self._deliver, send, receive)

    def _deliver(self, send: _Posted, receive: _Posted) -> None:
        if send.view.nbytes > receive.view.nbytes:
            receive.request.end(
                TransferFailed(
                    f"message of {send.view.nbytes} bytes for a receive of {receive.view.nbytes}",
                    reason="TRUNCATED",
                )
            )
        else:
            receive.view[: send.view.nbytes] = send.view
            receive.end()
        send.end()

    def withdraw(self, endpoint: MemoryEndpoint, why: str) -> None:
        """Take back what an endpoint posted and nothing has matched yet."""
        for table in (self._expected, self._arrived):
            for tag in list(table):
                for posted in [p for p in table[tag] if p.endpoint is endpoint]:
                    table[tag].remove(posted)
                    posted.request.end(TransferFailed(why, reason="CANCELLED"))
                if not table[tag]:
                    del table[tag]


def _key(buffer: Buffer) -> int:
    return id(buffer.obj) if isinstance(buffer, memoryview) else buffer.address


def _host(buffer: Buffer) -> memoryview:
    if not isinstance(buffer, memoryview):
        raise InvalidInput("the in-memory transport carries host memory only", field="buffer")
    return buffer
