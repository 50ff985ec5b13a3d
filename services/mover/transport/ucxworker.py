"""UCX worker: the half of the transport that lives on its plane, a thread or the loop.

Beside the address, nothing here is for others: they submit calls to the plane, and what they have
to know comes back as reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog
import ucxx._lib.libucxx as ucx_api

from services.mover.transport.base import Buffer, Reader, Request
from services.mover.transport.line import Floor
from services.mover.transport.operation import Operation
from services.mover.transport.reports import Reports
from services.mover.transport.ucp import Ucp, address_of
from worldline.errors import TransferFailed, Unavailable, WorldlineError

if TYPE_CHECKING:
    from services.mover.transport.ucxendpoint import UcxEndpoint

_log = structlog.get_logger(__name__)

#: Most progress calls in one turn.
_PROGRESS_BATCH = 16
#: Requests from here on may be reported late (`reports`); a seal or an answer is waited for.
_BULK_BYTES = 1 << 20
#: Bound on the messages dropped at the end: far more than aborted windows can leave behind.
_UNEXPECTED_MAX = 1_000_000


class UcxWorker:
    """One UCX context and worker, and the operations on it."""

    def __init__(self, options: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        """`options` are UCX's, without their prefix.

        Raises:
            OSError, RuntimeError, UCXError: UCX does not work so.
        """
        # Tags and wake-up only: features that are not asked for open no resources.
        features = (ucx_api.Feature.TAG, ucx_api.Feature.WAKEUP)
        self._context: Any = ucx_api.UCXContext(dict(options), features)
        self._worker: Any = ucx_api.UCXWorker(self._context)
        self._worker.init_blocking_progress_mode()
        self.address: bytes = self._worker.address.tobytes()
        self._ucp = Ucp()
        self._floor = Floor()
        self._operations: list[Operation] = []
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._reports = Reports(loop)
        self._small_ended = False
        self._failed = loop.create_future()
        #: Why nothing works any more.
        self.failure: WorldlineError | None = None

    @property
    def failed(self) -> asyncio.Future[WorldlineError]:
        """Done, with the cause, once the plane cannot go on; for the event loop."""
        return self._failed

    # --- for the plane -----------------------------------------------------------------------

    def descriptor(self) -> int:
        """See `Work.descriptor`."""
        number: int = self._worker.epoll_file_descriptor
        return number

    def arm(self) -> bool:
        """See `Work.arm`."""
        armed: bool = self._worker.arm()
        return armed

    def is_busy(self) -> bool:
        """See `Work.is_busy`."""
        return bool(self._operations or self._flushes)

    def turn(self) -> bool:
        """See `Work.turn`."""
        self._floor.moved = self._progress()
        if self._operations:
            self._operations = [each for each in self._operations if self._advances(each)]
        if self._flushes:
            self._flushes = [entry for entry in self._flushes if not self._flushed(*entry)]
        gather = self._floor.moved and bool(self._operations) and not self._small_ended
        self._reports.flush(gather=gather)
        self._small_ended = False
        return self._floor.moved

    def fail(self, cause: Exception) -> None:
        """See `Work.fail`: every request ends, with this cause."""
        failure = Unavailable(f"the data plane has failed: {cause!r}", reason="DATA_PLANE_FAILED")
        self.failure = failure
        operations, self._operations = self._operations, []
        for operation in operations:
            self._end(operation.endpoint, operation.request, _broken(failure))
        flushes, self._flushes = self._flushes, []
        for _, done in flushes:
            self._reports.add(_settle, done, _broken(failure))
        self._reports.add(self._failed.set_result, failure)
        self._reports.flush()

    def _progress(self) -> bool:
        worker = self._worker
        for count in range(_PROGRESS_BATCH):
            if not worker.progress_once():
                # Only this one also carries out the cancellations that ucxx has scheduled, for
                # the requests of an endpoint whose peer has died.
                worker.progress()
                return count > 0
        return True

    def _advances(self, operation: Operation) -> bool:
        error: TransferFailed | None = None
        try:
            if operation.advance():
                return True
        except TransferFailed as failed:
            error = failed
        except Exception as cause:  # a reader's, for instance
            _log.exception("ucx.operation_failed")
            error = TransferFailed(f"{operation.request.kind}: {cause!r}")
        if error is not None:
            self._floor.moved = True  # others may have waited for it to leave
        self._end(operation.endpoint, operation.request, error)
        return False

    def _end(self, endpoint: UcxEndpoint, request: Request, error: TransferFailed | None) -> None:
        self._small_ended |= request.size_bytes < _BULK_BYTES
        self._reports.add(endpoint.end, request, error)

    # --- submitted by the event loop ---------------------------------------------------------

    def post(
        self, endpoint: UcxEndpoint, request: Request, buffer: Buffer, reader: Reader | None
    ) -> None:
        """Begin a request; its end is reported to the endpoint."""
        if self.failure is not None:
            self._end(endpoint, request, _broken(self.failure))
            self._reports.flush()
            return
        operation = Operation(self._floor, endpoint, request, buffer, reader)
        if self._advances(operation):
            self._operations.append(operation)

    def open(self, endpoint: UcxEndpoint) -> tuple[str, ...]:
        """Make UCX's half of an endpoint; the lanes that it chose.

        Raises:
            TransferFailed: no lane reaches the peer.
        """
        try:
            packed = ucx_api.UCXAddress.create_from_buffer(endpoint.peer.worker)
            handle = ucx_api.UCXEndpoint.create_from_worker_address(self._worker, packed, True)
        except (ucx_api.UCXError, RuntimeError, ValueError) as cause:
            # UCX looks at interfaces once: one that was taken away and given anew is not used.
            raise TransferFailed(
                f"no lane reaches the peer: {cause}; where a network interface of this host or "
                "the peer's is new, start the mover there again",
                field="worker_address",
            ) from cause

        handle.set_close_callback(lambda: self._reports.add(endpoint.lose))
        endpoint.handle = handle
        # UCX has chosen them by now: the address says all that the choice depends on.
        return self._ucp.lanes(handle.handle)

    def close(self, endpoint: UcxEndpoint) -> None:
        """End UCX's half; its requests become terminal soon after."""
        handle, endpoint.handle = endpoint.handle, None
        if handle is not None:
            handle.close_blocking()
            handle.remove_close_callback()

    def flush(self, endpoint: UcxEndpoint, done: asyncio.Future[None]) -> None:
        """Settle `done` once everything sent has left this process.

        Raises:
            TransferFailed: the peer is gone.
        """
        if endpoint.handle is None or not endpoint.handle.alive:
            raise TransferFailed("the peer is gone")
        try:
            request = self._ucp.flush_start(endpoint.handle.handle)
        except OSError as cause:
            raise TransferFailed(f"flush: {cause}") from cause
        if request:
            self._flushes.append((request, done))
        else:
            self._reports.add(_settle, done, None)

    def _flushed(self, request: int, done: asyncio.Future[None]) -> bool:
        error = None
        try:
            if not self._ucp.flush_done(request):
                return False
        except OSError as cause:
            error = TransferFailed(str(cause))
        self._reports.add(_settle, done, error)
        return True

    def map(self, buffer: Buffer) -> int:
        """Register memory; UCX's handle of it.

        Raises:
            Unavailable: it cannot be registered.
        """
        address, size_bytes = address_of(buffer), buffer.nbytes
        try:
            handle: int = self._ucp.memory_map(self._context.handle, address, size_bytes)
        except OSError as cause:
            raise Unavailable(str(cause), reason="REGISTRATION_FAILED") from cause
        return handle

    def unmap(self, handle: int) -> None:
        """Undo `map`."""
        self._ucp.memory_unmap(self._context.handle, handle)

    def drop_unexpected(self) -> None:
        """Take messages that nobody received off the worker.

        ucxx's destructor would receive each of them first, and wait for ever where the sender has
        aborted or died.
        """
        every = ucx_api.UCXXTag(0), ucx_api.UCXXTagMask(0)
        for _ in range(_UNEXPECTED_MAX):
            if not self._worker.tag_probe(*every, True).matched:
                break


def _broken(failure: WorldlineError) -> TransferFailed:
    return TransferFailed(failure.message, reason=failure.reason)


def _settle(future: asyncio.Future[None], error: TransferFailed | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(None)
