"""UCX transport: tag messages between worker addresses, over whatever lanes UCX picks.

The only module that imports ucxx, and only its bindings: the asyncio layer above them returns
from a cancelled send as if it had been done. Here a request that did not complete raises.

The bindings cannot cancel one request, and UCX itself cannot recall one that has begun to move.
Ending requests therefore means closing their endpoint with error handling on: UCX then completes
each of them with an error, and `abort` waits until it has. That is why an endpoint serves one
transfer at a time, and why receives are posted through an endpoint as well.

Configuration. `UCX_*` variables win over what is set here:

- `POSIX_ERROR_HANDLING=y` keeps the shared-memory lane, which is the fastest that still notices a
  dead peer; without it, endpoints with error handling fall back to TCP.
- `TCP_TX_SEG_SIZE`, `TCP_RX_SEG_SIZE`: the default of 8 KiB costs four fifths of the rate.
- `KEEPALIVE_INTERVAL=1s`: a dead peer is noticed in about a second instead of twenty.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog
import ucxx._lib.libucxx as ucx_api
from ucxx._lib.arr import Array

from services.mover.transport.base import TAG_MAX, Endpoint, Request, Transport
from services.mover.transport.dataplane import DataPlane
from services.mover.transport.ucp import Ucp, address_of
from services.mover.transport.ucxendpoint import UcxEndpoint
from worldline.errors import TransferFailed, Unavailable

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

DEFAULTS = {
    "POSIX_ERROR_HANDLING": "y",
    "TCP_TX_SEG_SIZE": "1m",
    "TCP_RX_SEG_SIZE": "2m",
    "KEEPALIVE_INTERVAL": "1s",
}
#: Parked endpoints are a cache: this many peers are kept warm.
PARKED_MAX = 16
#: Worker addresses are a few hundred bytes; anything longer is not one.
ADDRESS_BYTES_MAX = 65_536
_STOP_S = 5.0
_FLUSH_S = 5.0
_CHECK_BYTES = 100_000
_CHECK_S = 3.0
#: Bound on the messages dropped at the end: far more than aborted windows can leave behind.
_UNEXPECTED_MAX = 1_000_000


class _Posted:
    """A request, UCX's handle of it, and the buffer that it keeps alive."""

    __slots__ = ("buffer", "handle", "request")

    def __init__(self, request: Request, handle: Any, buffer: Any) -> None:
        self.request = request
        self.handle = handle
        self.buffer = buffer


class UcxTransport(Transport):
    """One UCX worker, its data-plane thread, and the endpoints made from it."""

    name = "ucx"

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """`options` are UCX's, without their prefix; they win over `DEFAULTS`."""
        self._options = {**DEFAULTS, **(options or {})}
        self.context: Any = None
        self.worker: Any = None
        self._ucp: Any = None
        self._plane: DataPlane | None = None
        self._loop: Any = None
        self._address = b""
        self._posted: list[tuple[UcxEndpoint, _Posted]] = []
        self._endpoints: set[UcxEndpoint] = set()
        self._parked: list[UcxEndpoint] = []
        self._registered: dict[int, int] = {}
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def address(self) -> bytes:
        """The worker's address, as UCX packs it."""
        return self._address

    async def start(self) -> None:
        """See `Transport.start`."""
        self._loop = asyncio.get_running_loop()
        try:
            # Tags and wake-up only: features that are not asked for open no resources.
            self.context = ucx_api.UCXContext(
                {
                    name: value
                    for name, value in self._options.items()
                    if f"UCX_{name}" not in os.environ
                },
                (ucx_api.Feature.TAG, ucx_api.Feature.WAKEUP),
            )
            self.worker = ucx_api.UCXWorker(self.context)
            self.worker.init_blocking_progress_mode()
            self._address = self.worker.address.tobytes()
            self._ucp = Ucp()
        except (ucx_api.UCXError, OSError, RuntimeError) as error:
            raise _unusable(error) from error
        self._plane = DataPlane(self)
        self._plane.start()
        try:
            await self._check_loopback()
        except (TransferFailed, TimeoutError) as error:
            await self.stop()
            raise _unusable(error) from error

    async def _check_loopback(self) -> None:
        """Move a few bytes to this very worker: lanes may exist and still not fit what we ask."""
        sent, landed = bytearray(os.urandom(_CHECK_BYTES)), bytearray(_CHECK_BYTES)
        async with asyncio.timeout(_CHECK_S):
            endpoint = await self.connect(self._address)
            try:
                receive = endpoint.receive(memoryview(landed), TAG_MAX)
                await endpoint.send(memoryview(sent), TAG_MAX).wait()
                await receive.wait()
            finally:
                await endpoint.abort()
        if sent != landed:
            raise TransferFailed("the loopback changed what went through it")

    async def stop(self) -> None:
        """See `Transport.stop`."""
        if self._plane is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                for endpoint in [*self._endpoints, *self._parked]:
                    await endpoint.abort()
        except TimeoutError:
            _log.exception("ucx.requests_not_terminal", census=self.census())
        for handle in self._registered.values():
            await self._call(self._unmap, handle)
        self._registered = {}
        plane, self._plane = self._plane, None
        plane.submit(self._drop_unexpected)
        if not await asyncio.to_thread(plane.stop, _STOP_S):
            _log.error("ucx.data_plane_stuck")
        self.worker = self.context = None

    def _drop_unexpected(self) -> None:
        """Take messages that nobody received off the worker.

        ucxx's destructor would receive each of them first, and wait for ever where the sender has
        aborted or died.
        """
        every = ucx_api.UCXXTag(0), ucx_api.UCXXTagMask(0)
        for _ in range(_UNEXPECTED_MAX):
            if not self.worker.tag_probe(*every, True).matched:
                break

    # --- on the event loop -------------------------------------------------------------------

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function on the data-plane thread; its result or exception comes back."""
        if self._plane is None:
            raise TransferFailed("the transport is stopped")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            try:
                result = function(*arguments)
            except Exception as error:
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, result, None)

        self._plane.submit(run)
        return await answer

    async def register(self, view: memoryview) -> None:
        """See `Transport.register`."""
        address = address_of(view)
        self._registered[address] = await self._call(self._map, address, view.nbytes)

    async def unregister(self, view: memoryview) -> None:
        """See `Transport.unregister`."""
        handle = self._registered.pop(address_of(view), None)
        if handle is not None:
            await self._call(self._unmap, handle)

    async def connect(self, address: bytes) -> Endpoint:
        """See `Transport.connect`."""
        for endpoint in [other for other in self._parked if not other.alive]:
            await endpoint.abort()
        for endpoint in self._parked:
            if endpoint.peer == address:
                self._parked.remove(endpoint)
                self._endpoints.add(endpoint)
                return endpoint
        if not 0 < len(address) <= ADDRESS_BYTES_MAX:
            raise TransferFailed("not a UCX worker address", field="worker_address")
        endpoint = UcxEndpoint(self, address)
        self._endpoints.add(endpoint)
        try:
            await self._call(self._open, endpoint)
        except BaseException:
            # Cancelled, perhaps after UCX made it: the close is queued behind the open.
            endpoint.give_up()
            self._endpoints.discard(endpoint)
            if self._plane is not None:
                self._plane.submit(lambda: self._close(endpoint))
            raise
        return endpoint

    async def park(self, endpoint: Endpoint) -> None:
        """See `Transport.park`."""
        if not isinstance(endpoint, UcxEndpoint) or endpoint not in self._endpoints:
            return
        if endpoint.requests or not endpoint.alive:
            await endpoint.abort()
            return
        self._endpoints.discard(endpoint)
        self._parked.append(endpoint)
        while len(self._parked) > PARKED_MAX:
            await self._parked[0].abort()

    async def flush(self, endpoint: UcxEndpoint) -> None:
        """Wait until everything sent has left this process."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._call(self._flush, endpoint, done)
        try:
            async with asyncio.timeout(_FLUSH_S):
                await asyncio.shield(done)
        except TimeoutError:
            raise TransferFailed(f"not flushed within {_FLUSH_S:.0f} s") from None

    async def destroy(self, endpoint: UcxEndpoint) -> None:
        """Close UCX's endpoint; its requests become terminal soon after."""
        self._endpoints.discard(endpoint)
        if endpoint in self._parked:
            self._parked.remove(endpoint)
        await self._call(self._close, endpoint)

    def census(self) -> dict[str, int]:
        """See `Transport.census`."""
        every = (*self._endpoints, *self._parked)
        return {
            "endpoints": len(self._endpoints),
            "endpoints_parked": len(self._parked),
            "requests_outstanding": sum(len(endpoint.requests) for endpoint in every),
            "registrations": len(self._registered),
        }

    def post(self, endpoint: UcxEndpoint, request: Request, view: memoryview) -> None:
        """Hand a request to the data-plane thread."""
        if self._plane is None:
            self._finish(endpoint, request, TransferFailed("the transport is stopped"))
            return
        self._plane.submit(lambda: self._start(endpoint, request, view))

    def _finish(
        self, endpoint: UcxEndpoint, request: Request, error: TransferFailed | None
    ) -> None:
        request.end(error)
        endpoint.note_end(request)

    # --- on the data-plane thread ------------------------------------------------------------

    def _start(self, endpoint: UcxEndpoint, request: Request, view: memoryview) -> None:
        if endpoint.handle is None:
            error = TransferFailed(f"{request.kind}: the endpoint was aborted", reason="CANCELLED")
            self._loop.call_soon_threadsafe(self._finish, endpoint, request, error)
            return
        try:
            buffer = Array(view)
            tag = ucx_api.UCXXTag(request.tag)
            if request.kind == "send":
                handle = endpoint.handle.tag_send(buffer, tag)
            else:
                handle = endpoint.handle.tag_recv(buffer, tag)
        except (ucx_api.UCXError, RuntimeError, ValueError) as cause:
            error = TransferFailed(f"{request.kind}: {cause}")
            self._loop.call_soon_threadsafe(self._finish, endpoint, request, error)
            return
        self._posted.append((endpoint, _Posted(request, handle, buffer)))

    def sweep(self) -> bool:
        """Report finished requests and flushes; whether any is still outstanding."""
        if self._posted:
            self._posted = [entry for entry in self._posted if not self._reported(*entry)]
        if self._flushes:
            self._flushes = [entry for entry in self._flushes if not self._flushed(*entry)]
        return bool(self._posted or self._flushes)

    def _reported(self, endpoint: UcxEndpoint, posted: _Posted) -> bool:
        if not posted.handle.completed:
            return False
        error = None
        try:
            posted.handle.check_error()
        except ucx_api.UCXMessageTruncatedError as cause:
            error = TransferFailed(f"{posted.request.kind}: {cause}", reason="TRUNCATED")
        except ucx_api.UCXCanceledError as cause:
            error = TransferFailed(f"{posted.request.kind}: {cause}", reason="CANCELLED")
        except (ucx_api.UCXError, RuntimeError) as cause:
            error = TransferFailed(f"{posted.request.kind}: {cause}")
        self._loop.call_soon_threadsafe(self._finish, endpoint, posted.request, error)
        return True

    def _open(self, endpoint: UcxEndpoint) -> None:
        try:
            packed = ucx_api.UCXAddress.create_from_buffer(endpoint.peer)
            handle = ucx_api.UCXEndpoint.create_from_worker_address(self.worker, packed, True)
        except (ucx_api.UCXError, RuntimeError, ValueError) as cause:
            raise TransferFailed(
                f"no lane reaches the peer: {cause}", field="worker_address"
            ) from cause

        def lost() -> None:
            endpoint.failed = True

        handle.set_close_callback(lost)
        endpoint.handle = handle
        # UCX has chosen them by now: the address says all that the choice depends on.
        endpoint.note_lanes(self._ucp.lanes(handle.handle))

    def _close(self, endpoint: UcxEndpoint) -> None:
        handle, endpoint.handle = endpoint.handle, None
        if handle is not None:
            handle.close_blocking()
            handle.remove_close_callback()

    def _flush(self, endpoint: UcxEndpoint, done: asyncio.Future[None]) -> None:
        if endpoint.handle is None or not endpoint.handle.alive:
            raise TransferFailed("the peer is gone")
        try:
            request = self._ucp.flush_start(endpoint.handle.handle)
        except OSError as cause:
            raise TransferFailed(f"flush: {cause}") from cause
        if request:
            self._flushes.append((request, done))
        else:
            self._loop.call_soon_threadsafe(_settle, done, None)

    def _flushed(self, request: int, done: asyncio.Future[None]) -> bool:
        try:
            if not self._ucp.flush_done(request):
                return False
        except OSError as cause:
            self._loop.call_soon_threadsafe(_settle, done, TransferFailed(str(cause)))
        else:
            self._loop.call_soon_threadsafe(_settle, done, None)
        return True

    def _map(self, address: int, size_bytes: int) -> int:
        try:
            handle: int = self._ucp.memory_map(self.context.handle, address, size_bytes)
        except OSError as cause:
            raise Unavailable(str(cause), reason="REGISTRATION_FAILED") from cause
        return handle

    def _unmap(self, handle: int) -> None:
        self._ucp.memory_unmap(self.context.handle, handle)


def _settle(future: asyncio.Future[None], error: TransferFailed | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(None)


def _unusable(error: Exception) -> Unavailable:
    tls = os.environ.get("UCX_TLS", "")
    hint = f"UCX_TLS={tls} leaves no usable transport" if tls else "UCX does not work here"
    why = str(error) or "a message to itself did not arrive in time"
    return Unavailable(
        f"{hint}: {why}", reason="TRANSPORT_UNUSABLE", field="UCX_TLS" if tls else None
    )
