"""Pushing: the source's half of a push, from the order to the receipt.

The slot is pinned for as long as any request may still read it. The Land stream to the target is
the watch on its life: when it breaks, the requests are ended; when they fail, the target's own
words are waited for briefly, because it may know better why.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import structlog

from services.mover.chunking import ChunkPlan
from services.mover.gate import Admitted
from services.mover.landing import PROGRESS_EVERY_S
from services.mover.memory import SlotMemory
from services.mover.offer import Grant, Offer, PushOrder, Verification, grant_from_proto
from services.mover.slots import SlotRole
from services.mover.tickets import Subject, Use, check_manifest, check_source
from services.mover.transfer import Direction, Transfer
from services.mover.transport.base import Endpoint
from worldline.errors import (
    DeadlineExceeded,
    InvalidInput,
    TicketRefused,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.rpc.duplex import Duplex
from worldline.state.codec import digests_to_proto, manifest_to_proto
from worldline.state.digest import GRANULE_BYTES, Digester
from worldline.state.manifest import Digests
from worldline.telemetry import span
from worldline.telemetry.metrics import instruments
from worldline.ticket import MovePurpose, ticket_to_proto
from worldline.v1 import move_pb2, mover_pb2, mover_pb2_grpc

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

_log = structlog.get_logger(__name__)

#: How long a failed source waits for the target's reason.
_REASON_S = 0.5
_SCRATCH_STEP_BYTES = 4 << 20
Emit = Callable[[mover_pb2.PushResponse], None]


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is pushed, and how to let go of it."""

    view: memoryview
    let_go: Callable[[], None]


class Push:
    """One push. Its memory is let go once no request touches it."""

    def __init__(self, runtime: MoverRuntime, order: PushOrder) -> None:
        self._runtime = runtime
        self._order = order
        self._layout = order.manifest.layout
        self._memory: _Memory | None = None
        self._endpoint: Endpoint | None = None
        self._transfer: Transfer | None = None
        self._land: Duplex | None = None
        self._reported_at = 0.0

    async def run(self, emit: Emit) -> None:
        """Push everything and emit progress, then the outcome.

        Raises:
            TicketRefused, InvalidInput, Fenced, Conflict: before any byte moved.
            TransferFailed, IntegrityError, DeadlineExceeded, or what the target raised.
        """
        admitted = await self._runtime.gate.verify(self._order.ticket)
        claims = admitted.claims
        try:
            with span("mover.push", move_id=claims.move_id, bytes=self._layout.extent_bytes) as on:
                outcome = await self._push(admitted, emit)
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
        instruments().wire_bytes(self._layout.extent_bytes, "transmit")
        emit(mover_pb2.PushResponse(outcome=outcome))

    async def _push(self, admitted: Admitted, emit: Emit) -> mover_pb2.PushOutcome:
        self._memory = await self._take_memory(admitted)
        grant_s = admitted.grant_by - self._runtime.now()
        try:
            async with asyncio.timeout(max(0.0, grant_s)):
                land, grant = await self._offer()
        except TimeoutError:
            raise TicketRefused(
                "the ticket ran out before the target granted the wire",
                reason="TICKET_EXPIRED",
                field="ticket.valid_for_ms",
            ) from None
        lease_s = grant.lease_ms / 1e3
        try:
            async with asyncio.timeout(lease_s):
                return await self._send(land, grant, emit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the transfer took longer than its lease of {grant.lease_ms} ms",
                reason="LEASE_EXPIRED",
                field="ticket.lease_ms",
            ) from None

    # --- permission and memory ---------------------------------------------------------------

    async def _take_memory(self, admitted: Admitted) -> _Memory:
        order, runtime, claims = self._order, self._runtime, admitted.claims
        manifest = order.manifest
        subject = Subject(
            session_id=manifest.session_id,
            topology_hash=self._layout.topology_hash,
            extent_bytes=self._layout.extent_bytes,
            epoch=manifest.epoch,
        )
        check_manifest(claims, subject)
        check_source(claims, runtime.node_id, subject)
        if claims.purpose is MovePurpose.PROBE:
            runtime.book.redeem(claims, Use.PUSH, admitted.grant_by, runtime.now())
            return await self._scratch()
        slot = order.slot
        if slot is None:
            raise InvalidInput("a session's push needs its slot", field="source_slot")
        state = runtime.slots.resolve(
            slot, manifest.session_id, frozenset({SlotRole.LIVE, SlotRole.PARKED})
        )
        if self._layout.extent_bytes > state.extent_bytes:
            raise InvalidInput(
                f"the manifest covers {self._layout.extent_bytes} bytes, the slot holds "
                f"{state.extent_bytes}",
                field="manifest.layout.extent_bytes",
            )
        runtime.book.redeem(claims, Use.PUSH, admitted.grant_by, runtime.now())
        runtime.slots.pin(slot)
        return _Memory(
            runtime.slot_view(slot, self._layout.extent_bytes),
            lambda: runtime.slots.unpin(slot, runtime.now()),
        )

    async def _scratch(self) -> _Memory:
        """Random bytes in the same kind of memory as a slot's: a probe must not compress."""
        extent_bytes = self._layout.extent_bytes
        if extent_bytes > self._runtime.slots.slot_bytes:
            raise InvalidInput(
                f"a probe of {extent_bytes} bytes is larger than a slot",
                field="manifest.layout.extent_bytes",
            )
        scratch = SlotMemory("worldline-probe", max(1, extent_bytes))

        def fill() -> None:
            # Generators make 0.4 GB/s, and a large probe's ticket would run out meanwhile: one
            # random block under a new key each time looks as random to anything on the way.
            block = numpy.frombuffer(os.urandom(_SCRATCH_STEP_BYTES), numpy.uint64)
            for start in range(0, extent_bytes, _SCRATCH_STEP_BYTES):
                end = min(start + _SCRATCH_STEP_BYTES, extent_bytes)
                masked = block ^ numpy.uint64(secrets.randbits(64))
                scratch.view[start:end] = masked.tobytes()[: end - start]

        try:
            await asyncio.get_running_loop().run_in_executor(self._runtime.pool, fill)
        except BaseException:
            scratch.close()
            raise
        return _Memory(scratch.view[:extent_bytes], scratch.close)

    # --- the wire ----------------------------------------------------------------------------

    async def _offer(self) -> tuple[Duplex, Grant]:
        order = self._order
        channel = self._runtime.channels.get(order.target_mover_address)
        self._land = land = Duplex(mover_pb2_grpc.MoverServiceStub(channel).Land())
        offer = Offer(
            ticket=order.ticket,
            reservation_id=order.reservation_id,
            manifest=order.manifest,
            verification=order.verification,
            chunk_bytes=order.chunk_bytes,
            window_chunks=order.window_chunks,
            worker_address=self._runtime.transport.address,
        )
        await land.write(mover_pb2.LandRequest(offer=offer_to_proto(offer)))
        response = await _read(land)
        if response.WhichOneof("event") != "grant":
            raise InvalidInput("the target's first answer must be a grant", field="event")
        return land, grant_from_proto(response.grant, offer)

    async def _send(self, land: Duplex, grant: Grant, emit: Emit) -> mover_pb2.PushOutcome:
        granted_at = self._runtime.now()
        transfer = await self._transfer_under(grant)
        moving = asyncio.ensure_future(self._move(land, transfer, emit))
        answering = asyncio.ensure_future(_receipt(land))
        try:
            await asyncio.wait({moving, answering}, return_when=asyncio.FIRST_EXCEPTION)
            if moving.done() and moving.exception() is not None and not answering.done():
                await asyncio.wait({answering}, timeout=_REASON_S)
            _raise_first(answering, moving)
            digests, receipt = moving.result(), answering.result()
        finally:
            for task in (moving, answering):
                task.cancel()
            await asyncio.gather(moving, answering, return_exceptions=True)
        received_at = self._runtime.now()
        return self._outcome(digests, receipt, transfer, received_at - granted_at)

    async def _transfer_under(self, grant: Grant) -> Transfer:
        endpoint = await self._runtime.transport.connect(grant.worker_address)
        self._endpoint = endpoint
        memory = self._memory
        if memory is None:
            raise InvalidInput("nothing to push", field="source_slot")
        verification_on = self._order.verification is Verification.PIPELINED
        self._transfer = Transfer(
            endpoint,
            Direction.SEND,
            memory.view,
            ChunkPlan(self._layout.extent_bytes, grant.chunk_bytes, GRANULE_BYTES),
            window_chunks=grant.window_chunks,
            tag_base=grant.tag_base,
            digester=Digester(self._layout) if verification_on else None,
            pool=self._runtime.pool,
        )
        return self._transfer

    async def _move(self, land: Duplex, transfer: Transfer, emit: Emit) -> Digests | None:
        digests = await transfer.run(lambda moved: self._report(moved, emit))
        sealed = mover_pb2.LandSealed(
            digests=None if digests is None else digests_to_proto(digests),
            sent_bytes=transfer.moved_bytes,
        )
        await land.write(mover_pb2.LandRequest(sealed=sealed))
        await land.done_writing()
        return digests

    def _outcome(
        self,
        digests: Digests | None,
        receipt: mover_pb2.LandReceipt,
        transfer: Transfer,
        total_s: float,
    ) -> mover_pb2.PushOutcome:
        extent_bytes = self._layout.extent_bytes
        if receipt.receipt.received_bytes != extent_bytes:
            raise TransferFailed(
                f"the target received {receipt.receipt.received_bytes} of {extent_bytes} bytes",
                reason="TRUNCATED",
            )
        tail_ms = max(receipt.verify_tail_ms, transfer.tail_ms)
        order = self._order
        stats = move_pb2.PushStats(
            wire_bytes=extent_bytes,
            chunks=-(-extent_bytes // order.chunk_bytes),
            chunk_bytes=order.chunk_bytes,
            window_chunks=order.window_chunks,
            # Until the receipt: a send that ended says nothing about what the target holds, and
            # a small one ends before it has left this process.
            wire_ms=max(0.0, total_s * 1e3 - tail_ms),
            verify_tail_ms=tail_ms,
            verification=move_pb2.Verification.Name(order.verification),
            lanes=self._endpoint.lanes() if self._endpoint is not None else (),
        )
        return mover_pb2.PushOutcome(
            digests=None if digests is None else digests_to_proto(digests),
            receipt=receipt.receipt,
            push_stats=stats,
        )

    def _report(self, moved_bytes: int, emit: Emit) -> None:
        now = self._runtime.now()
        if now - self._reported_at >= PROGRESS_EVERY_S:
            self._reported_at = now
            progress = mover_pb2.PushProgress(
                sent_bytes=moved_bytes, total_bytes=self._layout.extent_bytes
            )
            emit(mover_pb2.PushResponse(progress=progress))

    # --- afterwards --------------------------------------------------------------------------

    def _retire(self, *, well: bool) -> None:
        self._runtime.cleaners.start(self._quiet(well), "quiet-push")

    async def _quiet(self, well: bool) -> None:
        if self._land is not None and not well:
            await self._land.close()
        if self._endpoint is not None and well:
            await self._runtime.transport.park(self._endpoint)
        elif self._transfer is not None:
            await self._transfer.abandon()
        elif self._endpoint is not None:
            await self._endpoint.abort()
        self._transfer = None
        memory, self._memory = self._memory, None
        if memory is not None:
            let_go = memory.let_go
            del memory
            let_go()


def offer_to_proto(offer: Offer) -> mover_pb2.LandOffer:
    """The wire form, under this build's protocol version."""
    return mover_pb2.LandOffer(
        protocol_version=PROTOCOL_VERSION,
        ticket=ticket_to_proto(offer.ticket),
        reservation_id=offer.reservation_id,
        manifest=manifest_to_proto(offer.manifest),
        verification=move_pb2.Verification.Name(offer.verification),
        chunk_bytes=offer.chunk_bytes,
        window_chunks=offer.window_chunks,
        worker_address=offer.worker_address,
    )


async def _receipt(land: Duplex) -> mover_pb2.LandReceipt:
    while True:
        response = await _read(land)
        if response.WhichOneof("event") == "receipt":
            return response.receipt


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
