"""Pushing: the source's half of a push, from the order to the receipt.

The order does everything that is slow while the world still runs: permission, this node's egress,
endpoint, the target's grant. After the go, only bytes move. The slot is pinned, and the egress
kept, for as long as any request may still read it. The Land stream to the target is the watch on
its life: when it breaks, the requests are ended; when they fail, the target's own words are waited
for briefly, because it may know better why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from services.mover.blanks import check_seen, late_chunks
from services.mover.gate import Admitted
from services.mover.go import GO_INDEX, GoFormat
from services.mover.landing import PROGRESS_EVERY_S
from services.mover.memory.base import SlotMemory
from services.mover.offer import (
    Frozen,
    Grant,
    Offer,
    PushOrder,
    Shape,
    checked_shape,
    frozen_from_proto,
    grant_from_proto,
    offer_to_proto,
    order_from_proto,
)
from services.mover.pushsource import PushSource, take_source
from services.mover.seal import (
    ANSWER_BYTES,
    ANSWER_INDEX,
    SEAL_INDEX,
    Seal,
    is_answer,
    pack_seal,
)
from services.mover.transfer import Direction, Transfer, Verification
from services.mover.transport.base import Endpoint, Request
from services.mover.wirewait import WireWait, egress_wait
from worldline.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    InvalidInput,
    TicketRefused,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.duplex import Duplex
from worldline.state.codec import digests_to_proto
from worldline.state.gf2 import Uint64s
from worldline.state.segment_digests import SegmentDigests, segment_digests
from worldline.telemetry import span
from worldline.telemetry.metrics import instruments
from worldline.v1 import move_pb2, mover_pb2, mover_pb2_grpc

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

_log = structlog.get_logger(__name__)

#: How long a failed source waits for the target's reason.
_REASON_S = 0.5
#: How long the target's answer may be behind its receipt, which it sends afterwards.
_ANSWER_S = 0.5
#: Nothing is in the way but the way itself.
_ASK_AGAIN_MS = 100
#: A stream that says nothing is no order.
_ORDER_S = 5.0
Emit = Callable[[mover_pb2.PushResponse], None]
Requests = AsyncIterator[mover_pb2.PushRequest]


@dataclass(frozen=True, slots=True)
class _Armed:
    """Everything that the go needs."""

    land: Duplex
    grant: Grant
    transfer: Transfer
    #: The target's answer to the seal, and where it lands.
    answering: Request
    answer: memoryview
    #: The target's receipt; one reader from the grant on, because a cancelled read ends the call.
    receipt: asyncio.Task[mover_pb2.LandReceipt]
    #: The lease without a go runs out then (loop time, seconds).
    go_by: float


class Push:
    """One push. Its memory is let go once no request touches it."""

    def __init__(self, runtime: MoverRuntime, order: PushOrder) -> None:
        self._runtime = runtime
        self._order = order
        self._layout = order.layout
        self._source: PushSource | None = None
        self._endpoint: Endpoint | None = None
        self._transfer: Transfer | None = None
        self._land: Duplex | None = None
        self._receipt: asyncio.Task[mover_pb2.LandReceipt] | None = None
        #: This node's egress, once it is taken.
        self._wire_id: str | None = None
        #: When the target's answer to the seal was here (loop time, seconds).
        self._verified_at: float | None = None
        self._reported_at = 0.0

    async def run(self, requests: Requests, emit: Emit) -> None:
        """Arm, wait for the go, push everything; emit progress, then the outcome.

        Raises:
            TicketRefused, InvalidInput, Fenced, Conflict: before any byte moved.
            CapacityExhausted: a wire would come too late (WIRE_TOO_LATE); nothing moved either.
            TransferFailed, IntegrityError, DeadlineExceeded, or what the target raised.
        """
        admitted = await self._runtime.gate.verify(self._order.ticket)
        claims = admitted.claims
        try:
            with span("mover.push", move_id=claims.move_id, bytes=self._layout.extent_bytes) as on:
                armed = await self._arm(admitted)
                emit(mover_pb2.PushResponse(armed=mover_pb2.PushArmed()))
                frozen = await self._go(armed, requests)
                outcome = await self._push(armed, frozen, emit)
                stats = outcome.push_stats
                on.set(
                    chunks=stats.chunks,
                    rate_bytes_per_s=stats.wire_bytes / max(stats.wire_ms, 1e-3) * 1e3,
                    lanes=",".join(stats.lanes),
                )
        except BaseException:
            self._retire(well=False)
            raise
        self._retire(well=True)
        instruments().wire_bytes(outcome.push_stats.wire_bytes, "transmit")
        emit(mover_pb2.PushResponse(outcome=outcome))

    # --- before the freeze -------------------------------------------------------------------

    async def _arm(self, admitted: Admitted) -> _Armed:
        source = self._source = await take_source(self._runtime, self._order, admitted)
        shape = self._shape(source.memory)
        if shape.verification.on:
            source.look(self._runtime.pool, self._layout)
        asked_s = self._runtime.now()
        wait = egress_wait(admitted.claims, admitted.grant_by, asked_s)
        await self._runtime.wires.take(wait, admitted.claims)
        self._wire_id = wait.ask.wire_id
        try:
            # The target's own refusal comes first, and says more.
            async with asyncio.timeout_at(wait.until_s + _REASON_S):
                wires, wire_id = self._runtime.wires, wait.ask.wire_id
                offering = self._offer(source, shape, asked_s)
                land, grant = await wires.until_granted(wire_id, offering)
                # What it took to ask counts too, and the target does not know it.
                go_by = self._go_by(wait, grant)
                wires.confirm(wire_id, go_by)
                transfer = await self._transfer_under(source.memory, grant)
                answer = memoryview(bytearray(ANSWER_BYTES))
                answering = transfer.endpoint.receive(answer, grant.tag_base + ANSWER_INDEX)
                self._receipt = receipt = asyncio.create_task(self._hear(land), name="receipt")
        except TimeoutError:
            raise TicketRefused(
                "the ticket ran out before the target granted the wire",
                reason="TICKET_EXPIRED",
                field="ticket.valid_for_ms",
            ) from None
        return _Armed(land, grant, transfer, answering, answer, receipt, go_by)

    def _go_by(self, wait: WireWait, grant: Grant) -> float:
        """Until when the go may come (loop time): within the lease, and before it would be late.

        Raises:
            CapacityExhausted: it would be late already (WIRE_TOO_LATE).
        """
        now = self._runtime.now()
        if not wait.ask.in_time(now):
            raise CapacityExhausted(
                "the target's grant was too long on its way: the move would end after its horizon",
                reason="WIRE_TOO_LATE",
                field="ticket.horizon_ms",
                retry_after_ms=_ASK_AGAIN_MS,
            )
        return min(now + grant.lease_ms / 1e3, wait.until_s)

    def _shape(self, memory: SlotMemory) -> Shape:
        order, usual = self._order, self._runtime.settings.shape_of(memory.device)
        shape = Shape(
            verification=order.verification or usual.verification,
            chunk_bytes=order.chunk_bytes or usual.chunk_bytes,
            window_chunks=order.window_chunks or usual.window_chunks,
        )
        return checked_shape(self._layout, shape)

    async def _offer(
        self, source: PushSource, shape: Shape, asked_s: float
    ) -> tuple[Duplex, Grant]:
        order = self._order
        stub = mover_pb2_grpc.MoverServiceStub
        target = self._runtime.channels.stub(stub, order.target_mover_address)
        self._land = land = Duplex(target.Land())
        blanks = await source.blanks()
        offer = Offer(
            ticket=order.ticket,
            reservation_id=order.reservation_id,
            session_id=order.session_id,
            epoch=order.epoch,
            layout=self._layout,
            shape=shape,
            worker_address=self._runtime.transport.address,
            device=source.memory.device,
            promote=order.promote,
            waited_s=self._runtime.now() - asked_s,
            blanks=blanks,
        )
        await land.write(mover_pb2.LandRequest(offer=offer_to_proto(offer)))
        response = await _read(land)
        if response.WhichOneof("event") != "grant":
            raise InvalidInput("the target's first answer must be a grant", field="event")
        return land, grant_from_proto(response.grant, offer)

    async def _transfer_under(self, memory: SlotMemory, grant: Grant) -> Transfer:
        runtime, shape = self._runtime, grant.shape
        endpoint = await runtime.connect(grant.worker_address, memory.device, grant.device)
        self._endpoint = endpoint
        digest = runtime.digest(self._layout, memory) if shape.verification.on else None
        self._transfer = Transfer(
            endpoint,
            Direction.SEND,
            memory,
            shape.plan(self._layout),
            window_chunks=shape.window_chunks,
            tag_base=grant.tag_base,
            digest=digest,
            digest_last=shape.verification is Verification.SEQUENTIAL,
            blanks=grant.blanks,
        )
        return self._transfer

    async def _go(self, armed: _Armed, requests: Requests) -> Frozen:
        """Wait for the go; the target may end it all meanwhile."""
        asking = asyncio.ensure_future(_next(requests, "go"))
        waits_s = max(0.0, armed.go_by - self._runtime.now())
        try:
            await asyncio.wait(
                {asking, armed.receipt}, timeout=waits_s, return_when=asyncio.FIRST_COMPLETED
            )
            if armed.receipt.done():
                _raise_first(armed.receipt, armed.receipt)
                raise InvalidInput("the target sent a receipt before the go", field="event")
            if not asking.done():
                raise DeadlineExceeded(
                    f"no go within the lease of {armed.grant.lease_ms} ms and the move's horizon",
                    reason="LEASE_EXPIRED",
                    field="ticket.lease_ms",
                )
            return frozen_from_proto(asking.result().go, self._layout)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    # --- after the go ------------------------------------------------------------------------

    async def _push(self, armed: _Armed, frozen: Frozen, emit: Emit) -> mover_pb2.PushOutcome:
        lease_ms = armed.grant.lease_ms
        if self._wire_id is not None:
            self._runtime.wires.lease(self._wire_id, self._runtime.now() + lease_ms / 1e3)
        try:
            async with asyncio.timeout(lease_ms / 1e3):
                return await self._send(armed, frozen, emit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the transfer took longer than its lease of {lease_ms} ms",
                reason="LEASE_EXPIRED",
                field="ticket.lease_ms",
            ) from None

    async def _send(self, armed: _Armed, frozen: Frozen, emit: Emit) -> mover_pb2.PushOutcome:
        went_at = self._runtime.now()
        armed.transfer.start()
        answering = armed.receipt
        armed.answering.ended.add_done_callback(lambda _: self._note_answer(armed))
        going = self._send_go(armed, frozen)
        moving = asyncio.ensure_future(self._move(armed, frozen, going, emit))
        try:
            await asyncio.wait({moving, answering}, return_when=asyncio.FIRST_EXCEPTION)
            if moving.done() and moving.exception() is not None and not answering.done():
                await asyncio.wait({answering}, timeout=_REASON_S)
            _raise_first(answering, moving)
            own, receipt = moving.result(), answering.result()
            # The receipt says the same: an answer that does not come costs the endpoint, no more.
            await asyncio.wait({armed.answering.ended}, timeout=_ANSWER_S)
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        total_s = (self._verified_at or self._runtime.now()) - went_at
        digests = None if own is None else digests_to_proto(own.digests(frozen.layout))
        return mover_pb2.PushOutcome(
            digests=digests,
            receipt=receipt.receipt,
            push_stats=self._stats(armed, receipt, total_s),
        )

    def _send_go(self, armed: _Armed, frozen: Frozen) -> Request:
        go = GoFormat.of(self._layout).pack(frozen)
        return armed.transfer.endpoint.send(go, armed.grant.tag_base + GO_INDEX)

    async def _move(
        self, armed: _Armed, frozen: Frozen, going: Request, emit: Emit
    ) -> SegmentDigests | None:
        transfer = armed.transfer
        moving = asyncio.ensure_future(transfer.run(lambda moved: self._report(moved, emit)))
        try:
            # The seal need not wait for the last byte: the target knows by itself what has landed.
            await asyncio.wait({moving, transfer.digested}, return_when=asyncio.FIRST_COMPLETED)
            if not transfer.digested.done():
                moving.result()
            crcs = transfer.digested.result()
            own = None if crcs is None else segment_digests(frozen.layout, crcs)
            late = [] if crcs is None else self._post_late(frozen, transfer, crcs)
            seal = pack_seal(Seal(transfer.wire_bytes, own))
            sealing = transfer.endpoint.send(seal, armed.grant.tag_base + SEAL_INDEX)
            await moving
            await sealing.wait()
            await going.wait()
            for each in late:
                await each.wait()
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        return own

    def _post_late(self, frozen: Frozen, transfer: Transfer, crcs: Uint64s) -> list[Request]:
        """What was written after the look: the target sees the same in the seal, and takes it."""
        late = late_chunks(frozen.layout, transfer.blanks, crcs)
        check_seen(late, transfer.written)
        return transfer.post_late(late)

    def _note_answer(self, armed: _Armed) -> None:
        if armed.answering.error is None and is_answer(armed.answer):
            self._verified_at = self._runtime.now()

    async def _hear(self, land: Duplex) -> mover_pb2.LandReceipt:
        while True:
            response = await _read(land)
            if response.WhichOneof("event") == "receipt":
                return self._checked(response.receipt)

    def _checked(self, receipt: mover_pb2.LandReceipt) -> mover_pb2.LandReceipt:
        received_bytes, extent_bytes = receipt.receipt.received_bytes, self._layout.extent_bytes
        if received_bytes != extent_bytes:
            raise TransferFailed(
                f"the target received {received_bytes} of {extent_bytes} bytes", reason="TRUNCATED"
            )
        return receipt

    def _stats(
        self, armed: _Armed, receipt: mover_pb2.LandReceipt, total_s: float
    ) -> move_pb2.PushStats:
        tail_ms = max(receipt.verify_tail_ms, armed.transfer.tail_ms)
        shape = armed.grant.shape
        return move_pb2.PushStats(
            wire_bytes=armed.transfer.wire_bytes,
            chunks=armed.transfer.chunk_count,
            chunk_bytes=shape.chunk_bytes,
            window_chunks=shape.window_chunks,
            # Until the target's word: a send that ended says nothing about what the target holds,
            # and a small one ends before it has left this process.
            wire_ms=max(0.0, total_s * 1e3 - tail_ms),
            verify_tail_ms=tail_ms,
            verification=move_pb2.Verification.Name(shape.verification),
            lanes=self._endpoint.lanes() if self._endpoint is not None else (),
            total_ms=total_s * 1e3,
            blank_bytes=armed.transfer.blank_bytes,
        )

    def _report(self, moved_bytes: int, emit: Emit) -> None:
        now = self._runtime.now()
        # Nothing moved is no news, and would keep the first bytes from being told.
        if moved_bytes and now - self._reported_at >= PROGRESS_EVERY_S:
            self._reported_at = now
            total_bytes = moved_bytes if self._transfer is None else self._transfer.wire_bytes
            progress = mover_pb2.PushProgress(sent_bytes=moved_bytes, total_bytes=total_bytes)
            emit(mover_pb2.PushResponse(progress=progress))

    # --- afterwards --------------------------------------------------------------------------

    def _retire(self, *, well: bool) -> None:
        self._runtime.cleaners.start(self._quiet(well), "quiet-push")

    async def _quiet(self, well: bool) -> None:
        if self._land is not None and not well:
            await self._land.close()
        if self._receipt is not None:
            self._receipt.cancel()
            await asyncio.gather(self._receipt, return_exceptions=True)
        if self._endpoint is not None and well:
            await self._runtime.park(self._endpoint)
        elif self._transfer is not None:
            await self._transfer.abandon()
        elif self._endpoint is not None:
            await self._endpoint.abort()
        self._transfer = None
        if self._wire_id is not None:
            self._runtime.wires.give_back(self._wire_id)
        source, self._source = self._source, None
        if source is not None:
            await source.let_go()


async def push(runtime: MoverRuntime, requests: Requests, emit: Emit) -> None:
    """Serve one Push stream: the order, then the go."""
    try:
        async with asyncio.timeout(_ORDER_S):
            first = await _next(requests, "order")
    except TimeoutError:
        raise InvalidInput(
            f"no order within {_ORDER_S:.0f} s of opening the stream", field="order"
        ) from None
    await Push(runtime, order_from_proto(first.order)).run(requests, emit)


async def _next(requests: Requests, event: str) -> mover_pb2.PushRequest:
    async for request in requests:
        if request.WhichOneof("event") == event:
            return request
        raise InvalidInput(f"the next message must be `{event}`", field="event")
    raise InvalidInput(f"the stream ended without `{event}`", field=event)


async def _read(land: Duplex) -> mover_pb2.LandResponse:
    response: mover_pb2.LandResponse | None = await land.read()
    if response is None:
        raise TransferFailed("the target ended the stream early", reason="TARGET_GONE")
    return response


def _raise_first(answering: asyncio.Future[Any], moving: asyncio.Future[Any]) -> None:
    """The target's reason if it gave one, else our own."""
    theirs = answering.exception() if answering.done() else None
    own = moving.exception() if moving.done() else None
    if isinstance(theirs, WorldlineError) and not (own and isinstance(theirs, Unavailable)):
        raise _peer_gone(theirs)
    for error in (own, theirs):
        if isinstance(error, WorldlineError):
            raise _peer_gone(error)
        if error is not None:
            raise error


def _peer_gone(error: WorldlineError) -> WorldlineError:
    """A target that vanished in mid-transfer is a failed transfer, not an unanswered call."""
    if isinstance(error, Unavailable):
        return TransferFailed(f"the target is gone: {error.message}", reason="TARGET_GONE")
    return error
