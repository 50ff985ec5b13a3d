"""Landing: the target's half of a push, from the offer to the receipt.

Order: permission checked, the slot pinned, receives posted, wire granted (the lease starts here),
chunks land and are digested, the source seals with its own digests, both are compared, and only
then does the reservation count as landed. Anything else aborts: the slot is quarantined until the
transport says that every request is terminal.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import structlog

from services.mover.chunking import CHUNK_INDEX_BITS, ChunkPlan
from services.mover.offer import Offer, Verification, offer_from_proto
from services.mover.reservation import Reservation
from services.mover.slots import ref_to_proto
from services.mover.tickets import Subject, check_manifest, check_target
from services.mover.transfer import Abort, Direction, Transfer
from services.mover.transport.base import Endpoint
from worldline.errors import IntegrityError, InvalidInput, TransferFailed, WorldlineError
from worldline.state.codec import digests_from_proto, digests_to_proto
from worldline.state.difference import compare
from worldline.state.digest import GRANULE_BYTES, Digester
from worldline.state.manifest import Digests
from worldline.telemetry import span
from worldline.telemetry.metrics import instruments
from worldline.v1 import move_pb2, mover_pb2

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

_log = structlog.get_logger(__name__)

#: At most this often is progress reported.
PROGRESS_EVERY_S = 0.05
_OFFER_S = 5.0
Emit = Callable[[mover_pb2.LandResponse], None]


def tag_base() -> int:
    """Unguessable and never reused: random bits above those that number the chunks."""
    return secrets.randbits(64 - CHUNK_INDEX_BITS) << CHUNK_INDEX_BITS


class Landing:
    """One landing. Held by the runtime from the grant until its memory is quiet."""

    def __init__(self, runtime: MoverRuntime, offer: Offer, reservation: Reservation) -> None:
        self._runtime = runtime
        self._offer = offer
        self.reservation = reservation
        self._abort = Abort()
        self._transfer: Transfer | None = None
        self._endpoint: Endpoint | None = None
        self._landed = False
        self._reported_at = 0.0

    @classmethod
    async def admit(cls, runtime: MoverRuntime, offer: Offer) -> Landing:
        """Check the permission and take the wire for this offer.

        Raises:
            TicketRefused, InvalidInput, NotFound, Conflict: the offer is not what was reserved.
        """
        admitted = await runtime.gate.verify(offer.ticket)
        manifest = offer.manifest
        subject = Subject(
            session_id=manifest.session_id,
            topology_hash=manifest.layout.topology_hash,
            extent_bytes=manifest.layout.extent_bytes,
            epoch=manifest.epoch,
        )
        check_manifest(admitted.claims, subject)
        check_target(admitted.claims, runtime.node_id, subject)
        reservation = runtime.reservations.grant(
            offer.reservation_id,
            admitted.claims,
            manifest,
            verification_on=offer.verification is Verification.PIPELINED,
            now=runtime.now(),
        )
        runtime.slots.pin(reservation.slot)
        landing = cls(runtime, offer, reservation)
        runtime.landings[reservation.reservation_id] = landing
        runtime.wake_reaper()
        return landing

    def abort(self, cause: WorldlineError) -> None:
        """Give up, for this cause; the first one counts."""
        self._abort.tell(cause)

    async def run(self, requests: AsyncIterator[mover_pb2.LandRequest], emit: Emit) -> None:
        """Land everything and emit grant, progress and receipt.

        Raises:
            TransferFailed, IntegrityError, DeadlineExceeded: nothing was installed.
        """
        try:
            with span(
                "mover.land",
                move_id=self.reservation.claims.move_id,
                bytes=self._offer.manifest.layout.extent_bytes,
            ) as active:
                receipt = await self._land(requests, emit)
                active.set(verify_tail_ms=receipt.verify_tail_ms)
            self._landed = True
            emit(mover_pb2.LandResponse(receipt=receipt))
        finally:
            # Also when cancelled: the source's stream is gone, so is its claim to the slot.
            self._retire()

    async def _land(
        self, requests: AsyncIterator[mover_pb2.LandRequest], emit: Emit
    ) -> mover_pb2.LandReceipt:
        transfer = await self._grant(emit)
        layout = self._offer.manifest.layout
        moving = asyncio.ensure_future(transfer.run(lambda moved: self._report(moved, emit)))
        sealing = asyncio.ensure_future(_sealed(requests))
        try:
            await self._both(moving, sealing)
            own, sealed = moving.result(), sealing.result()
        finally:
            for task in (moving, sealing):
                task.cancel()
            await asyncio.gather(moving, sealing, return_exceptions=True)
        if sealed.sent_bytes != layout.extent_bytes:
            raise TransferFailed(
                f"the source sent {sealed.sent_bytes} of {layout.extent_bytes} bytes",
                reason="TRUNCATED",
            )
        if own is not None:
            self._compare(sealed, own)
        self._abort.check()
        reservations = self._runtime.reservations
        reservations.landed(self.reservation.reservation_id, self._runtime.now())
        instruments().wire_bytes(layout.extent_bytes, "receive")
        return self._receipt(own, transfer)

    async def _grant(self, emit: Emit) -> Transfer:
        offer, runtime = self._offer, self._runtime
        layout = offer.manifest.layout
        endpoint = await runtime.transport.connect(offer.worker_address)
        self._endpoint = endpoint
        base = tag_base()
        self._transfer = Transfer(
            endpoint,
            Direction.RECEIVE,
            runtime.slot_view(self.reservation.slot, layout.extent_bytes),
            ChunkPlan(layout.extent_bytes, offer.chunk_bytes, GRANULE_BYTES),
            window_chunks=offer.window_chunks,
            tag_base=base,
            digester=Digester(layout) if self.reservation.verification_on else None,
            pool=runtime.pool,
        )
        self._transfer.start()
        grant = mover_pb2.LandGrant(
            worker_address=runtime.transport.address,
            tag_base=base,
            chunk_bytes=offer.chunk_bytes,
            window_chunks=offer.window_chunks,
            lease_ms=self.reservation.claims.lease_ms,
        )
        emit(mover_pb2.LandResponse(grant=grant))
        return self._transfer

    async def _both(
        self,
        moving: asyncio.Future[Digests | None],
        sealing: asyncio.Future[mover_pb2.LandSealed],
    ) -> None:
        """Until both are done; the first failure, or an abort from outside, ends it at once."""
        waiting: set[asyncio.Future[Any]] = {moving, sealing}
        while waiting:
            done, _ = await asyncio.wait(
                {*waiting, self._abort.told}, return_when=asyncio.FIRST_COMPLETED
            )
            self._abort.check()
            for future in done:
                future.result()
            waiting -= done

    def _compare(self, sealed: mover_pb2.LandSealed, own: Digests) -> None:
        layout = self._offer.manifest.layout
        if not sealed.HasField("digests"):
            raise InvalidInput("sealed without digests", field="sealed.digests")
        difference = compare(layout, digests_from_proto(sealed.digests, layout), own)
        if difference is not None:
            claims = self.reservation.claims
            instruments().path_mismatch(claims.source_node_id, claims.target_node_id)
            raise IntegrityError(
                f"bytes changed in flight: {difference.message}",
                leaf=difference.leaf,
                granule=difference.granule,
            )

    def _receipt(self, own: Digests | None, transfer: Transfer) -> mover_pb2.LandReceipt:
        layout = self._offer.manifest.layout
        receipt = move_pb2.Receipt(
            move_id=self.reservation.claims.move_id,
            slot=ref_to_proto(self.reservation.slot),
            topology_hash=layout.topology_hash,
            digests=None if own is None else digests_to_proto(own),
            received_bytes=transfer.moved_bytes,
        )
        return mover_pb2.LandReceipt(receipt=receipt, verify_tail_ms=transfer.tail_ms)

    def _report(self, moved_bytes: int, emit: Emit) -> None:
        now = self._runtime.now()
        if now - self._reported_at >= PROGRESS_EVERY_S:
            self._reported_at = now
            emit(mover_pb2.LandResponse(progress=mover_pb2.LandProgress(landed_bytes=moved_bytes)))

    def _retire(self) -> None:
        """Hand the memory back: at once when quiet, else through quarantine."""
        runtime, slot = self._runtime, self.reservation.slot
        if not self._landed:
            cause = self._abort.cause or TransferFailed("the landing failed")
            runtime.give_up(self.reservation.reservation_id, cause)
        runtime.cleaners.start(self._quiet(), f"quiet-slot-{slot.slot_index}")

    async def _quiet(self) -> None:
        runtime = self._runtime
        if self._landed and self._endpoint is not None:
            await runtime.transport.park(self._endpoint)
        elif self._transfer is not None:
            await self._transfer.abandon()
        elif self._endpoint is not None:
            await self._endpoint.abort()
        runtime.landings.pop(self.reservation.reservation_id, None)
        runtime.slots.unpin(self.reservation.slot, runtime.now())


async def land(
    runtime: MoverRuntime, requests: AsyncIterator[mover_pb2.LandRequest], emit: Emit
) -> None:
    """Serve one Land stream: the offer, then everything that follows from it."""
    try:
        async with asyncio.timeout(_OFFER_S):
            first = await anext(requests)
    except StopAsyncIteration:
        raise InvalidInput("the stream ended without an offer", field="offer") from None
    except TimeoutError:
        raise InvalidInput(
            f"no offer within {_OFFER_S:.0f} s of opening the stream", field="offer"
        ) from None
    if first.WhichOneof("event") != "offer":
        raise InvalidInput("the first message must be an offer", field="offer")
    landing = await Landing.admit(runtime, offer_from_proto(first.offer))
    _log.info("land.granted", reservation=landing.reservation.reservation_id)
    await landing.run(requests, emit)


async def _sealed(requests: AsyncIterator[mover_pb2.LandRequest]) -> mover_pb2.LandSealed:
    async for request in requests:
        if request.WhichOneof("event") == "sealed":
            return request.sealed
        raise InvalidInput("only `sealed` may follow the offer", field="event")
    raise TransferFailed(
        "the source closed the stream before it had sent everything", reason="SOURCE_GONE"
    )
