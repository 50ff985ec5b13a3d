"""Landing: the target's half of a push, from the offer to the receipt.

Before the freeze: permission checked, the slot pinned, the wire waited for, receives posted. From
the source's go: chunks land and are digested, the source seals with its own digests, both are
compared, and only then does the reservation count as landed and the source get its answer. Anything
else aborts: the slot is quarantined, and the wire kept, until the transport says that every request
is terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from services.mover.blanks import NO_BLANKS, Blanks, know_zeros, late_chunks, write_blanks
from services.mover.chunking import CHUNK_INDEX_BITS
from services.mover.crossing import settled
from services.mover.go import GO_INDEX, GoFormat
from services.mover.offer import Frozen, Offer, offer_from_proto
from services.mover.reservation import Reservation, Staged
from services.mover.seal import (
    ANSWER_INDEX,
    SEAL_INDEX,
    Seal,
    pack_answer,
    seal_bytes,
    unpack_seal,
)
from services.mover.slots import ref_to_proto
from services.mover.staging import largest_chunk
from services.mover.tickets import Subject, check_offered, check_reservation, check_target
from services.mover.transfer import Abort, Direction, Transfer, Verification
from services.mover.transport.base import Endpoint, Request
from services.mover.wirewait import WireWait, ingress_wait
from worldline.errors import IntegrityError, InvalidInput, TransferFailed, WorldlineError
from worldline.state.codec import digests_to_proto
from worldline.state.digest import GRANULE_BYTES
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.segment_digests import (
    SegmentDigests,
    compare_segment_digests,
    segment_digests,
)
from worldline.state.segments import segments_of
from worldline.telemetry import span
from worldline.telemetry.metrics import instruments
from worldline.v1 import move_pb2, mover_pb2

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

#: At most this often is progress reported.
PROGRESS_EVERY_S = 0.05
_OFFER_S = 5.0
#: An answer that the source does not take within this is dropped, with its endpoint.
_ANSWER_S = 2.0
#: A reservation outlasts its wait for the wire by this.
_REFUSAL_S = 0.5
Emit = Callable[[mover_pb2.LandResponse], None]


def tag_base() -> int:
    """Unguessable and never reused: random bits above those that number the chunks."""
    return secrets.randbits(64 - CHUNK_INDEX_BITS) << CHUNK_INDEX_BITS


class Landing:
    """One landing. Held by the runtime from the offer until its memory is quiet."""

    def __init__(
        self, runtime: MoverRuntime, offer: Offer, reservation: Reservation, wait: WireWait
    ) -> None:
        self._runtime = runtime
        self._offer = offer
        self.reservation = reservation
        self._wait = wait
        self._frozen: asyncio.Future[Frozen] = asyncio.get_running_loop().create_future()
        self._answering: Request | None = None
        #: A thread that has zeros written to the slot.
        self._blanking: asyncio.Future[None] | None = None
        self._abort = Abort()
        self._tag_base = 0
        self._transfer: Transfer | None = None
        self._endpoint: Endpoint | None = None
        self._landed = False
        #: When progress was reported last, or the go was here (loop time, seconds).
        self._reported_at = 0.0

    @classmethod
    async def admit(cls, runtime: MoverRuntime, offer: Offer) -> Landing:
        """Check the permission for this offer.

        Raises:
            TicketRefused, InvalidInput, NotFound, Conflict: the offer is not what was reserved.
        """
        offered_s = runtime.now()
        admitted = await runtime.gate.verify(offer.ticket, offer.waited_s)
        subject = Subject(
            session_id=offer.session_id,
            topology_hash=offer.layout.topology_hash,
            extent_bytes=offer.layout.extent_bytes,
            epoch=offer.epoch,
        )
        check_offered(admitted.claims, subject)
        check_target(admitted.claims, runtime.node_id, subject)
        check_reservation(admitted.claims, offer.reservation_id)
        wait = ingress_wait(admitted.claims, admitted.grant_by, offered_s, offer.waited_s)
        await runtime.reserved(offer.reservation_id, min(admitted.grant_by, wait.until_s))
        reservation = runtime.reservations.offered(
            offer.reservation_id,
            admitted.claims,
            offer.layout.extent_bytes,
            verification_on=offer.shape.verification.on,
            # The wires' own refusal comes first, and says more.
            until=wait.until_s + _REFUSAL_S,
            now=runtime.now(),
        )
        runtime.slots.pin(reservation.slot)
        landing = cls(runtime, offer, reservation, wait)
        runtime.landings[reservation.reservation_id] = landing
        return landing

    def abort(self, cause: WorldlineError) -> None:
        """Give up, for this cause; the first one counts."""
        self._abort.tell(cause)

    async def run(self, requests: AsyncIterator[mover_pb2.LandRequest], emit: Emit) -> None:
        """Land everything and emit grant, progress, verdict and receipt.

        Raises:
            TransferFailed, IntegrityError, DeadlineExceeded: nothing was installed.
        """
        watching = asyncio.ensure_future(_watch(requests))
        try:
            with span(
                "mover.land",
                move_id=self.reservation.claims.move_id,
                bytes=self._offer.layout.extent_bytes,
            ) as active:
                receipt = await self._land(watching, emit)
                active.set(verify_tail_ms=receipt.verify_tail_ms)
            emit(mover_pb2.LandResponse(receipt=receipt))
        finally:
            # Also when cancelled: the source's stream is gone, so is its claim to the slot. First,
            # because whoever is cancelled while it waits here goes no further.
            self._retire()
            await _end(watching)

    async def _land(self, watching: asyncio.Future[None], emit: Emit) -> mover_pb2.LandReceipt:
        self._begin_blanking()
        await self._until(self._runtime.wires.take(self._wait, self.reservation.claims), watching)
        blanks = await self._until(self._blanked(), watching)
        transfer, sealing, message = await self._grant(blanks, emit)
        moving = asyncio.ensure_future(transfer.run(lambda moved: self._report(moved, emit)))
        sealed = asyncio.ensure_future(sealing.wait())
        try:
            # One future of all: every turn of the loop counts while a world stands still.
            arrived = asyncio.gather(moving, sealed, self._frozen)
            crcs, _, frozen = await self._until(arrived, watching)
        finally:
            await _end(moving, sealed)
        seal = unpack_seal(message, verification_on=self.reservation.verification_on)
        if transfer.blanks and seal.digests is not None:
            late = late_chunks(frozen.layout, transfer.blanks, seal.digests.crcs)
            if late:
                crcs = await self._until(transfer.land_late(late), watching)
        if seal.sent_bytes != transfer.wire_bytes:
            raise TransferFailed(
                f"the source sent {seal.sent_bytes} of {transfer.wire_bytes} bytes",
                reason="TRUNCATED",
            )
        own = None if crcs is None else self._compare(frozen.layout, seal, crcs)
        self._abort.check()
        self._stage(seal.digests)
        instruments().wire_bytes(transfer.wire_bytes, "receive")
        if own is not None:
            instruments().verified(transfer.tail_ms, "landing")
        return self._receipt(frozen.layout, own, transfer)

    async def _grant(self, blanks: Blanks, emit: Emit) -> tuple[Transfer, Request, memoryview]:
        offer, runtime = self._offer, self._runtime
        self._start_lease(runtime.reservations.granted(offer.reservation_id, runtime.now()))
        memory = runtime.slot_memory(self.reservation.slot)
        endpoint = await runtime.connect(offer.worker_address, memory.device, offer.device)
        self._endpoint = endpoint
        base = tag_base()
        largest_bytes = largest_chunk(memory.device, offer.device, endpoint.lanes())
        shape = offer.shape.within(largest_bytes)
        verification = shape.verification
        self._transfer = Transfer(
            endpoint,
            Direction.RECEIVE,
            memory,
            shape.plan(offer.layout),
            window_chunks=shape.window_chunks,
            tag_base=base,
            digest=runtime.digest(offer.layout, memory) if verification.on else None,
            digest_last=verification is Verification.SEQUENTIAL,
            blanks=blanks,
        )
        self._transfer.start()
        sealing, message = self._expect_seal(endpoint, base)
        self._expect_go(endpoint, base)
        grant = mover_pb2.LandGrant(
            worker_address=runtime.transport.address,
            tag_base=base,
            chunk_bytes=shape.chunk_bytes,
            window_chunks=shape.window_chunks,
            lease_ms=self.reservation.claims.lease_ms,
            device=memory.device,
            blanks_taken=bool(blanks.runs),
        )
        emit(mover_pb2.LandResponse(grant=grant))
        return self._transfer, sealing, message

    def _begin_blanking(self) -> None:
        """Write zeros where the source had some, beside the wait for the wire."""
        if self._offer.blanks.runs:
            pool, loop = self._runtime.pool, asyncio.get_running_loop()
            self._blanking = loop.run_in_executor(pool, self._write_blanks)

    def _write_blanks(self) -> None:
        memory, layout = self._runtime.slot_memory(self.reservation.slot), self._offer.layout
        write_blanks(memory, self._offer.blanks, layout.extent_bytes)
        know_zeros(layout)

    async def _blanked(self) -> Blanks:
        """What stays behind, once it is zeros."""
        if self._blanking is None:
            return NO_BLANKS
        await asyncio.shield(self._blanking)
        return self._offer.blanks

    def _expect_seal(self, endpoint: Endpoint, base: int) -> tuple[Request, memoryview]:
        layout = self._offer.layout
        verification_on = self.reservation.verification_on
        count = segments_of(layout, GRANULE_BYTES).count if verification_on else None
        message = memoryview(bytearray(seal_bytes(count)))
        self._tag_base = base
        return endpoint.receive(message, base + SEAL_INDEX), message

    def _expect_go(self, endpoint: Endpoint, base: int) -> None:
        expected = GoFormat.of(self._offer.layout)
        message = memoryview(bytearray(expected.size_bytes))
        going = endpoint.receive(message, base + GO_INDEX)
        going.ended.add_done_callback(lambda _: self._note_go(going, expected, message))

    def _note_go(self, going: Request, expected: GoFormat, message: memoryview) -> None:
        try:
            if going.error is not None:
                raise going.error
            self._go(expected.unpack(message))
        except WorldlineError as error:
            self._abort.tell(error)

    def _go(self, frozen: Frozen) -> None:
        offer, runtime = self._offer, self._runtime
        staged = Staged(offer.session_id, offer.epoch, frozen.block_index, frozen.layout)
        now = self._reported_at = runtime.now()
        self._start_lease(runtime.reservations.go(offer.reservation_id, staged, now))
        if not self._frozen.done():
            self._frozen.set_result(frozen)

    def _start_lease(self, reservation: Reservation) -> None:
        self._runtime.wires.lease(reservation.reservation_id, reservation.deadline)
        self._runtime.wake_reaper()  # the lease may end sooner than the wait would have

    async def _until(self, wanted: Awaitable[_T], watching: asyncio.Future[None]) -> _T:
        """What it gives; a failure, a source that is gone or an abort ends it at once."""
        future = asyncio.ensure_future(wanted)
        waiting: set[asyncio.Future[Any]] = {future, watching, self._abort.told}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self._abort.check()
            if watching.done():
                watching.result()
            return future.result()
        finally:
            await _end(future)

    def _compare(self, layout: Layout, seal: Seal, crcs: Uint64s) -> SegmentDigests:
        own = segment_digests(layout, crcs)
        if seal.digests is None:
            raise InvalidInput("sealed without digests", field="seal")
        difference = compare_segment_digests(layout, seal.digests, own)
        if difference is not None:
            claims = self.reservation.claims
            instruments().path_mismatch(claims.source_node_id, claims.target_node_id)
            raise IntegrityError(
                f"bytes changed in flight: {difference.message}",
                leaf=difference.leaf,
                granule=difference.granule,
            )
        return own

    def _stage(self, sealed: SegmentDigests | None) -> None:
        """What landed is the source's: answer before anything that takes longer."""
        runtime, offer = self._runtime, self._offer
        reservation = runtime.reservations.landed(offer.reservation_id, runtime.now(), sealed)
        self._landed = True
        promote = offer.promote and reservation.verification_on
        if promote:
            runtime.promote(offer.reservation_id, reservation.slot)
        if self._endpoint is not None:
            answer = pack_answer(promoted=promote)
            self._answering = self._endpoint.send(answer, self._tag_base + ANSWER_INDEX)
        runtime.landing.decided(offer.reservation_id)
        # Nothing of this move comes in any more.
        runtime.wires.give_back(offer.reservation_id)

    def _receipt(
        self, layout: Layout, own: SegmentDigests | None, transfer: Transfer
    ) -> mover_pb2.LandReceipt:
        receipt = move_pb2.Receipt(
            move_id=self.reservation.claims.move_id,
            slot=ref_to_proto(self.reservation.slot),
            topology_hash=layout.topology_hash,
            digests=None if own is None else digests_to_proto(own.digests(layout)),
            received_bytes=transfer.moved_bytes + transfer.blank_bytes,
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
        if self._blanking is not None:
            await settled([self._blanking])
        if self._landed and self._endpoint is not None:
            if self._answering is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ANSWER_S):
                        await self._answering.settled()
            await runtime.park(self._endpoint)
        elif self._transfer is not None:
            await self._transfer.abandon()
        elif self._endpoint is not None:
            await self._endpoint.abort()
        runtime.landings.pop(self.reservation.reservation_id, None)
        runtime.wires.give_back(self.reservation.reservation_id)
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
    _log.info("land.offered", reservation=landing.reservation.reservation_id)
    await landing.run(requests, emit)


async def _end(*futures: asyncio.Future[Any]) -> None:
    """See that all have ended, well or not; where they have, it costs no turn of the loop."""
    if not all(future.done() for future in futures):
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
    for future in futures:
        if not future.cancelled():
            future.exception()  # or it would be logged as one that nobody has looked at


async def _watch(requests: AsyncIterator[mover_pb2.LandRequest]) -> None:
    """After its offer the source's stream says no more than that it lives.

    Raises:
        TransferFailed: it does not any more.
        InvalidInput: it said something.
    """
    async for _ in requests:
        raise InvalidInput("nothing may follow the offer", field="event")
    raise TransferFailed(
        "the source closed the stream before it had sent everything", reason="SOURCE_GONE"
    )
