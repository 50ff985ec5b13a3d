"""UCX transport: tag messages between workers, over whatever lanes UCX picks, or read in place.

Only this package imports ucxx, and only its bindings: the asyncio layer above them returns
from a cancelled send as if it had been done. Here a request that did not complete raises.

The bindings cannot cancel one request, and UCX itself cannot recall one that has begun to move.
Ending requests therefore means closing their endpoint with error handling on: UCX then completes
each of them with an error, and `abort` waits until it has. That is why an endpoint serves one
transfer at a time, and why receives are posted through an endpoint as well.

Between processes of one host the receiver maps the sender's memory files and copies from there
(`rendezvous`); UCX then carries the small messages around it, and notices a dead peer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog
from ucxx._lib.libucxx import UCXError

from services.mover.transport.base import TAG_MAX, Buffer, Endpoint, Reader, Request, Transport
from services.mover.transport.lanes import Lane, reads_in_place, ucx_options
from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.neighbours import Neighbour
from services.mover.transport.peeraddress import MemoryFile, PeerAddress, own_address, peer_address
from services.mover.transport.plane import Plane, Work
from services.mover.transport.rendezvous import Place
from services.mover.transport.threadplane import ThreadPlane
from services.mover.transport.ucp import address_of
from services.mover.transport.ucxendpoint import UcxEndpoint
from services.mover.transport.ucxworker import UcxWorker
from worldline.cuda.runtime import adopt_device
from worldline.errors import TransferFailed, Unavailable

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

#: Parked endpoints are a cache: this many peers are kept warm.
PARKED_MAX = 16
_STOP_S = 5.0
_FLUSH_S = 5.0
_CHECK_BYTES = 100_000
_CHECK_S = 3.0


class _Registered:
    """Registered memory: UCX's handle of it, and the memory file that it maps from the start."""

    def __init__(self, size_bytes: int, handle: int, file: MemoryFile | None) -> None:
        self.size_bytes = size_bytes
        self.handle = handle
        self.file = file


class UcxTransport(Transport):
    """One UCX worker, the plane that runs it, and the endpoints made from it."""

    name = "ucx"

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        cuda_devices: Sequence[int] = (),
        lane: Lane = Lane.AUTO,
        plane: Callable[[Work], Plane] | None = None,
    ) -> None:
        """`options` are UCX's, without their prefix; they win over those of the lane.

        `cuda_devices` are those whose memory will be carried, by index. Their memory cannot be
        read in place, and the messages around it would only delay them. `plane` runs the worker;
        None: the event loop where devices move the bytes, else a thread of its own.
        """
        options = options or {}
        self._cuda_devices = tuple(cuda_devices)
        self._options = ucx_options(lane, options, os.environ)
        self._mappable = not self._cuda_devices and reads_in_place(lane, options, os.environ)
        self._worker: UcxWorker | None = None
        self._make_plane = plane or (LoopPlane if self._cuda_devices else ThreadPlane)
        self._plane: Plane | None = None
        self._endpoints: set[UcxEndpoint] = set()
        self._parked: list[UcxEndpoint] = []
        self._registered: dict[int, _Registered] = {}
        self._neighbours: dict[bytes, Neighbour] = {}
        self._mapping = ThreadPoolExecutor(1, thread_name_prefix="neighbours")
        self._leaving: set[asyncio.Future[None]] = set()

    @property
    def address(self) -> bytes:
        """The worker's address, and the memory files that a neighbour may map."""
        return self._own().pack()

    def _own(self) -> PeerAddress:
        if self._worker is None:
            raise Unavailable("the transport is not started", reason="TRANSPORT_STOPPED")
        files = [entry.file for entry in self._registered.values() if entry.file is not None]
        numbers = (file.number for file in files)
        return own_address(self._worker.address, numbers, mappable=self._mappable)

    async def start(self) -> None:
        """See `Transport.start`."""
        try:
            self._worker = UcxWorker(self._options, asyncio.get_running_loop())
        except (UCXError, OSError, RuntimeError) as error:
            raise _unusable(error) from error
        self._plane = self._make_plane(self._worker)
        self._plane.start()
        for index in reversed(self._cuda_devices):
            # UCX works in the context of whoever makes progress.
            await self._call(adopt_device, index)
        try:
            await self._check_loopback()
        except (TransferFailed, TimeoutError) as error:
            await self.stop()
            raise _unusable(error) from error

    async def watch(self) -> None:
        """See `Transport.watch`."""
        if self._worker is None:
            raise Unavailable("the transport is not started", reason="TRANSPORT_STOPPED")
        raise await asyncio.shield(self._worker.failed)

    async def _check_loopback(self) -> None:
        """Move a few bytes to this very worker: lanes may exist and still not fit what we ask."""
        sent, landed = bytearray(os.urandom(_CHECK_BYTES)), bytearray(_CHECK_BYTES)
        async with asyncio.timeout(_CHECK_S):
            endpoint = await self.connect(self.address)
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
        worker, plane = self._worker, self._plane
        if worker is None or plane is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                for endpoint in [*self._endpoints, *self._parked]:
                    await endpoint.abort()
                await asyncio.gather(*self._leaving, return_exceptions=True)
        except TimeoutError:
            _log.exception("ucx.requests_not_terminal", census=self.census())
        if worker.failure is None:
            for entry in self._registered.values():
                await self._call(worker.unmap, entry.handle)
            plane.submit(worker.drop_unexpected)
        self._registered = {}
        self._plane = None
        if not await plane.stop(_STOP_S):
            _log.error("ucx.data_plane_stuck")
        self._worker = None
        await asyncio.to_thread(self._mapping.shutdown)

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function on the plane; its result or exception comes back.

        Raises:
            TransferFailed: the transport is stopped.
            Unavailable: the data plane has failed.
        """
        worker, plane = self._worker, self._plane
        if worker is None or plane is None:
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
                if worker.failure is not None:
                    raise worker.failure
                result = function(*arguments)
            except Exception as error:
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, result, None)

        plane.submit(run)
        return await answer

    # --- memory ------------------------------------------------------------------------------

    async def register(self, buffer: Buffer, descriptor: int | None = None) -> None:
        """See `Transport.register`."""
        worker = self._started()
        file = None if descriptor is None else MemoryFile.of(descriptor)
        mapping = asyncio.ensure_future(self._call(worker.map, buffer))
        try:
            handle = await asyncio.shield(mapping)
        except asyncio.CancelledError:
            # UCX may have it by now, and nobody else would ever give it back.
            await asyncio.wait({mapping})
            if mapping.exception() is None:
                await self._call(worker.unmap, mapping.result())
            raise
        self._registered[address_of(buffer)] = _Registered(buffer.nbytes, handle, file)

    async def unregister(self, buffer: Buffer) -> None:
        """See `Transport.unregister`."""
        entry = self._registered.pop(address_of(buffer), None)
        worker = self._worker
        if entry is not None and worker is not None and worker.failure is None:
            await self._call(worker.unmap, entry.handle)

    def place_of(self, buffer: Buffer) -> Place | None:
        """Where in a registered memory file a host buffer lies; also for the plane."""
        if not isinstance(buffer, memoryview) or buffer.readonly or not buffer.nbytes:
            return None
        address = address_of(buffer)
        for start, entry in list(self._registered.items()):
            offset_bytes = address - start
            if entry.file is not None and 0 <= offset_bytes <= entry.size_bytes - buffer.nbytes:
                return Place(entry.file, offset_bytes, buffer.nbytes)
        return None

    # --- endpoints ---------------------------------------------------------------------------

    async def connect(self, address: bytes) -> Endpoint:
        """See `Transport.connect`."""
        worker = self._started()
        peer = peer_address(address)
        for endpoint in [other for other in self._parked if not other.alive]:
            await endpoint.abort()
        for endpoint in self._parked:
            if endpoint.peer.worker == peer.worker:
                self._parked.remove(endpoint)
                self._endpoints.add(endpoint)
                endpoint.renew(peer)
                return endpoint
        endpoint = UcxEndpoint(self, peer, self._neighbour(peer))
        self._endpoints.add(endpoint)
        try:
            endpoint.note_lanes(await self._call(worker.open, endpoint))
        except BaseException:
            # Cancelled, perhaps after UCX made it: the close is queued behind the open.
            endpoint.give_up()
            self._endpoints.discard(endpoint)
            if self._plane is not None:
                self._plane.submit(lambda: worker.close(endpoint))
            self.leave(endpoint)
            raise
        return endpoint

    def _wake(self) -> None:
        """Have the plane look again."""
        if self._plane is not None:
            self._plane.submit(lambda: None)

    def _neighbour(self, peer: PeerAddress) -> Neighbour | None:
        if not peer.is_neighbour_of(self._own()):
            return None
        if peer.worker not in self._neighbours:
            self._neighbours[peer.worker] = Neighbour(peer.pid, self._mapping, self._wake)
        return self._neighbours[peer.worker]

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
        """Wait until everything sent has left this process.

        Raises:
            TransferFailed: the peer is gone, or it took too long.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._call(self._started().flush, endpoint, done)
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
        worker = self._worker
        if worker is not None and worker.failure is None:
            await self._call(worker.close, endpoint)

    def leave(self, endpoint: UcxEndpoint) -> None:
        """An endpoint has ended: without another one to its peer, the peer's memory is let go."""
        worker = endpoint.peer.worker
        if any(other.peer.worker == worker for other in (*self._endpoints, *self._parked)):
            return
        neighbour = self._neighbours.pop(worker, None)
        if neighbour is not None:
            neighbour.close()

    def lost(self, endpoint: UcxEndpoint) -> None:
        """A peer is gone. Whoever uses the endpoint aborts it; nobody does if it is parked."""
        if endpoint in self._parked:
            self._parked.remove(endpoint)
            self._endpoints.add(endpoint)
            leaving = asyncio.ensure_future(endpoint.abort())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    def census(self) -> dict[str, int]:
        """See `Transport.census`."""
        every = (*self._endpoints, *self._parked)
        return {
            "endpoints": len(self._endpoints),
            "endpoints_parked": len(self._parked),
            "requests_outstanding": sum(len(endpoint.requests) for endpoint in every),
            "registrations": len(self._registered),
            "neighbours": len(self._neighbours),
        }

    def post(
        self, endpoint: UcxEndpoint, request: Request, buffer: Buffer, reader: Reader | None
    ) -> None:
        """Hand a request to the plane."""
        worker, plane = self._worker, self._plane
        if worker is None or plane is None:
            endpoint.end(request, TransferFailed("the transport is stopped"))
            return
        plane.submit(lambda: worker.post(endpoint, request, buffer, reader))

    def _started(self) -> UcxWorker:
        if self._worker is None or self._plane is None:
            raise TransferFailed("the transport is stopped")
        if self._worker.failure is not None:
            raise self._worker.failure
        return self._worker


def _unusable(error: Exception) -> Unavailable:
    tls = os.environ.get("UCX_TLS")
    hint = "UCX does not work here" if tls is None else f"UCX_TLS={tls} leaves no usable transport"
    why = str(error) or "a message to itself did not arrive in time"
    return Unavailable(
        f"{hint}: {why}", reason="TRANSPORT_UNUSABLE", field=None if tls is None else "UCX_TLS"
    )
