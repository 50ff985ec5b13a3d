"""UCX endpoint: one transfer's path to a peer's worker, seen from the event loop.

Its UCX half, the handle, lives on the plane; see `ucxworker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from services.mover.transport.line import Line
from services.mover.transport.neighbours import Neighbour
from services.mover.transport.peeraddress import PeerAddress
from services.mover.transport.rendezvous import Place
from worldline.errors import TransferFailed

if TYPE_CHECKING:
    from services.mover.transport.ucx import UcxTransport

#: What is said of the lanes where the receiver reads the sender's memory in place.
IN_PLACE = "in-place/memory"
#: Lanes by which the sender's core copies: it has its bytes in its cache when it sends them.
_COPYING = ("posix/", "sysv/", "tcp/", "self/")


class UcxEndpoint(Endpoint):
    """One transfer's path to a peer's worker."""

    def __init__(
        self, transport: UcxTransport, peer: PeerAddress, neighbour: Neighbour | None
    ) -> None:
        self._transport = transport
        self.peer = peer
        #: The peer's memory, where both ends may read each other's in place.
        self.neighbour = neighbour
        #: ucxx's endpoint while it is open; touched on the plane only.
        self.handle: Any = None
        #: Whose bytes the peer is about to copy; touched on the plane only.
        self.pace = Line()
        self._lanes: tuple[str, ...] = ()
        #: Of a neighbour's bytes, those that were read in place, and those that UCX carried after
        #: all: counted on the plane, for one transfer.
        self._in_place_bytes = 0
        self._sent_bytes = 0
        self.copies_here = True
        self._open = True
        self.requests: set[Request] = set()
        self.failed = False

    @property
    def alive(self) -> bool:
        """Whether it was neither closed nor reported broken."""
        return self._open and not self.failed

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """See `Endpoint.send`."""
        return self._post("send", buffer, tag, reader)

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        """See `Endpoint.receive`."""
        if self.neighbour is not None:
            self.neighbour.expect(self.peer.files)
        return self._post("receive", buffer, tag, reader)

    def _post(self, kind: str, buffer: Buffer, tag: int, reader: Reader | None) -> Request:
        request = Request(kind, tag, buffer.nbytes)
        if not self._open:
            request.end(TransferFailed(f"{kind}: the endpoint is closed", reason="CANCELLED"))
            return request
        self.requests.add(request)
        self._transport.post(self, request, buffer, reader)
        return request

    def place_of(self, buffer: Buffer) -> Place | None:
        """Where the peer may read a buffer in place; None where it may not."""
        return self._transport.place_of(buffer)

    def lanes(self) -> tuple[str, ...]:
        """See `Endpoint.lanes`. In place is said until most bytes have gone another way."""
        if self._sent_bytes <= self._in_place_bytes:
            return self._lanes
        return tuple(lane for lane in self._lanes if lane != IN_PLACE)

    def count(self, size_bytes: int, *, in_place: bool) -> None:
        """A message was read in place, or could not be and UCX carried it."""
        if in_place:
            self._in_place_bytes += size_bytes
        else:
            self._sent_bytes += size_bytes

    def renew(self, peer: PeerAddress) -> None:
        """Another transfer begins; the peer may have more memory by now."""
        self.peer = peer
        self._in_place_bytes = self._sent_bytes = 0

    def note_lanes(self, lanes: tuple[str, ...]) -> None:
        """What UCX chose when it made the endpoint."""
        copying = all(lane.startswith(_COPYING) for lane in lanes)
        self.copies_here = copying and self.neighbour is None
        in_place = () if self.neighbour is None else (IN_PLACE,)
        self._lanes = tuple(sorted((*in_place, *lanes)))

    def give_up(self) -> None:
        """The transport could not make it."""
        self._open = False

    def lose(self) -> None:
        """UCX reports the peer gone."""
        self.failed = True
        self._transport.lost(self)

    async def close(self) -> None:
        """See `Endpoint.close`."""
        if not self._open:
            return
        requests = list(self.requests)
        for request in requests:
            await request.settled()
        errors = [request.error for request in requests if request.error is not None]
        try:
            if errors or self.failed:
                raise errors[0] if errors else TransferFailed("the peer is gone")
            if self._open:
                await self._transport.flush(self)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """See `Endpoint.abort`."""
        self._open = False
        await self._transport.destroy(self)
        for request in list(self.requests):
            await request.settled()
        self._transport.leave(self)

    def end(self, request: Request, error: TransferFailed | None) -> None:
        """One of this endpoint's requests has ended."""
        request.end(error)
        self.requests.discard(request)
        if request.error is not None:
            self.failed = True
