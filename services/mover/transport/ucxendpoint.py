"""UCX endpoint: one transfer's path to a peer's worker, seen from the event loop.

Its UCX half, the handle, lives on the data-plane thread; see `ucx`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.mover.transport.base import Endpoint, Request
from worldline.errors import TransferFailed

if TYPE_CHECKING:
    from services.mover.transport.ucx import UcxTransport


class UcxEndpoint(Endpoint):
    """One transfer's path to a peer's worker."""

    def __init__(self, transport: UcxTransport, peer: bytes) -> None:
        self._transport = transport
        self.peer = peer
        #: ucxx's endpoint while it is open; touched on the data-plane thread only.
        self.handle: Any = None
        self._lanes: tuple[str, ...] = ()
        self._open = True
        self.requests: set[Request] = set()
        self.failed = False

    @property
    def alive(self) -> bool:
        """Whether it was neither closed nor reported broken."""
        return self._open and not self.failed

    def send(self, view: memoryview, tag: int) -> Request:
        """See `Endpoint.send`."""
        return self._post("send", view, tag)

    def receive(self, view: memoryview, tag: int) -> Request:
        """See `Endpoint.receive`."""
        return self._post("receive", view, tag)

    def _post(self, kind: str, view: memoryview, tag: int) -> Request:
        request = Request(kind, tag, view.nbytes)
        if not self._open:
            request.end(TransferFailed(f"{kind}: the endpoint is closed", reason="CANCELLED"))
            return request
        self.requests.add(request)
        self._transport.post(self, request, view)
        return request

    def lanes(self) -> tuple[str, ...]:
        """See `Endpoint.lanes`."""
        return self._lanes

    def note_lanes(self, lanes: tuple[str, ...]) -> None:
        """What UCX chose when it made the endpoint."""
        self._lanes = lanes

    def give_up(self) -> None:
        """The transport could not make it."""
        self._open = False

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

    def note_end(self, request: Request) -> None:
        """The transport ended one of this endpoint's requests."""
        self.requests.discard(request)
        if request.error is not None:
            self.failed = True
