"""Operation: one request on the plane, as steps between which others get on.

Bytes travel in one of two ways. Either UCX carries them, over whatever lanes it has chosen; or,
between neighbours, the receiver reads them in place (`rendezvous`). In the second case one core
copies each byte once, with stores that bypass the caches where the C library has been told to,
while lanes of UCX on one host copy it twice, or once within the kernel.

A reader sees each byte while it is in a cache, where that can be had: a receiver's right after it
has landed, a sender's right before this core copies it. Where the peer copies it, a sender's reader
brings it into the cache that both cores share, right before the peer needs it there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import ucxx._lib.libucxx as ucx_api
from ucxx._lib.arr import Array

from services.mover.transport import rendezvous
from services.mover.transport.base import Buffer, Reader, Request
from services.mover.transport.line import Floor, Steps
from services.mover.transport.rendezvous import Place
from services.mover.transport.ucp import address_of
from worldline.errors import TransferFailed

if TYPE_CHECKING:
    from services.mover.transport.ucxendpoint import UcxEndpoint

#: Bytes that are copied in place before others get on, for about a millisecond: between two pieces
#: the interpreter has lost its caches to the copy, and half as large ones cost a tenth of the rate.
COPY_BYTES = 8 << 20
#: Bytes that are read before others get on where this core also copies: half of what a receiver has
#: in UCX's shared memory meanwhile.
READ_BYTES = 1 << 20


class Operation:
    """A send or receive under way. It keeps its buffers alive until UCX is done with them."""

    def __init__(
        self,
        floor: Floor,
        endpoint: UcxEndpoint,
        request: Request,
        buffer: Buffer,
        reader: Reader | None,
    ) -> None:
        self.endpoint = endpoint
        self.request = request
        self._floor = floor
        self._buffer = buffer
        self._reader = reader
        self._steps = self._choose()

    def advance(self) -> bool:
        """Take the next step; False once there is none.

        Raises:
            TransferFailed: the request has failed; nothing touches its buffer any more.
        """
        try:
            next(self._steps)
        except StopIteration:
            self._leave()
            return False
        except BaseException:
            self._leave()
            raise
        return True

    def _leave(self) -> None:
        self._floor.leave(self)
        self.endpoint.pace.leave(self)

    def _choose(self) -> Steps:
        sends = self.request.kind == "send"
        if self.endpoint.neighbour is None:
            return self._send() if sends else self._receive()
        return self._offer() if sends else self._take()

    # --- UCX carries the bytes ---------------------------------------------------------------

    def _send(self) -> Steps:
        if self.endpoint.copies_here:
            yield from self._read()
            yield from self._sent(self._buffer)
            return
        handle = self._post_send(self._buffer, self.request.tag)
        yield from self._until(handle, self._read_beside_peer())

    def _receive(self) -> Steps:
        yield from self._received(self._buffer)
        yield from self._read()

    # --- the receiver reads them in place ----------------------------------------------------

    def _offer(self) -> Steps:
        place = self.endpoint.place_of(self._buffer)
        offered = bytearray(rendezvous.offer(place, self._buffer.nbytes))
        if place is None:
            yield from self._sent(memoryview(offered))
            self.endpoint.count(self._buffer.nbytes, in_place=False)
            yield from self._send()
            return
        answer = bytearray(rendezvous.ANSWER_BYTES)
        tag = rendezvous.answer_tag(self.request.tag)
        answering = self._post_receive(memoryview(answer), tag)
        yield from self._until(answering, self._offered(memoryview(offered)))
        is_read = answer != rendezvous.SEND
        self.endpoint.count(self._buffer.nbytes, in_place=is_read)
        if not is_read:
            yield from self._sent(self._buffer)

    def _offered(self, offered: memoryview) -> Steps:
        yield from self._sent(offered)
        yield from self._read_beside_peer()

    def _take(self) -> Steps:
        offered = bytearray(rendezvous.OFFER_BYTES)
        yield from self._received(memoryview(offered))
        place = rendezvous.place_of(offered)
        is_read = place is not None and (yield from self._copied(place))
        self.endpoint.count(self._buffer.nbytes, in_place=is_read)
        if place is not None:
            yield from self._answer(rendezvous.DONE if is_read else rendezvous.SEND)
        if not is_read:
            yield from self._receive()

    def _answer(self, answer: bytes) -> Steps:
        buffer = memoryview(bytearray(answer))
        tag = rendezvous.answer_tag(self.request.tag)
        yield from self._done(self._post_send(buffer, tag))

    def _copied(self, place: Place) -> Generator[None, None, bool]:
        """Copy from the neighbour's memory; False where it cannot be read."""
        neighbour = self.endpoint.neighbour
        if neighbour is None or not isinstance(self._buffer, memoryview):
            return False
        opening = neighbour.mapping(place.file)
        while not opening.done():
            self._check_open()
            yield
        mapping = opening.result()
        if mapping is None:
            return False
        if place.size_bytes > self._buffer.nbytes:
            yield from self._answer(rendezvous.DONE)
            raise TransferFailed(
                f"{place.size_bytes} bytes for a receive of {self._buffer.nbytes}",
                reason="TRUNCATED",
            )
        source, target = mapping.address + place.offset_bytes, address_of(self._buffer)
        yield from self._floor.wait(self)
        for start in range(0, place.size_bytes, COPY_BYTES):
            self._check_open()
            size_bytes = min(COPY_BYTES, place.size_bytes - start)
            ctypes.memmove(target + start, source + start, size_bytes)
            if self._reader is not None:
                self._reader(start, size_bytes)
            self._floor.moved = True
            yield
        self._floor.leave(self)
        return True

    # --- parts of both -----------------------------------------------------------------------

    def _read_beside_peer(self) -> Steps:
        """Have it read when the peer is about to copy it, and not long before.

        It stays this one's turn on the endpoint until the operation ends, when the peer is done.
        """
        yield from self.endpoint.pace.wait(self)
        yield from self._read()

    def _read(self) -> Steps:
        if self._reader is None:
            return
        yield from self._floor.wait(self)
        step_bytes = READ_BYTES if self.endpoint.copies_here else COPY_BYTES
        for start in range(0, self._buffer.nbytes, step_bytes):
            self._reader(start, min(step_bytes, self._buffer.nbytes - start))
            self._floor.moved = True
            yield
        self._floor.leave(self)

    def _sent(self, buffer: Buffer) -> Steps:
        yield from self._done(self._post_send(buffer, self.request.tag))

    def _received(self, buffer: Buffer) -> Steps:
        yield from self._done(self._post_receive(buffer, self.request.tag))

    def _post_send(self, buffer: Buffer, tag: int) -> Any:
        return self._post("tag_send", buffer, tag)

    def _post_receive(self, buffer: Buffer, tag: int) -> Any:
        return self._post("tag_recv", buffer, tag)

    def _post(self, name: str, buffer: Buffer, tag: int) -> Any:
        self._check_open()
        try:
            return getattr(self.endpoint.handle, name)(Array(buffer), ucx_api.UCXXTag(tag))
        except (ucx_api.UCXError, RuntimeError, ValueError) as cause:
            raise TransferFailed(f"{self.request.kind}: {cause}") from cause

    def _check_open(self) -> None:
        if self.endpoint.handle is None:
            kind = self.request.kind
            raise TransferFailed(f"{kind}: the endpoint was aborted", reason="CANCELLED")

    def _until(self, handle: Any, steps: Steps) -> Steps:
        """These steps, then the end of a request of UCX; waited for also where they fail."""
        try:
            yield from steps
        except Exception:
            while not handle.completed:
                yield
            raise
        yield from self._done(handle)

    def _done(self, handle: Any) -> Steps:
        while not handle.completed:
            yield
        kind = self.request.kind
        try:
            handle.check_error()
        except ucx_api.UCXMessageTruncatedError as cause:
            raise TransferFailed(f"{kind}: {cause}", reason="TRUNCATED") from cause
        except ucx_api.UCXCanceledError as cause:
            raise TransferFailed(f"{kind}: {cause}", reason="CANCELLED") from cause
        except (ucx_api.UCXError, RuntimeError) as cause:
            raise TransferFailed(f"{kind}: {cause}") from cause
        self._floor.moved = True
