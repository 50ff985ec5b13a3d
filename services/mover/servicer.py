"""Mover servicer: parses each call once, asks the runtime, answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from services.mover.landing import land
from services.mover.offer import push_from_proto
from services.mover.pushing import Push
from services.mover.runtime import MoverRuntime
from services.mover.slots import ref_from_proto, ref_to_proto
from services.mover.tasks import fed_by
from worldline.fields import identifier, whole
from worldline.state.codec import digests_to_proto, layout_from_proto, manifest_from_proto
from worldline.ticket import ticket_from_proto
from worldline.v1 import move_pb2, mover_pb2, mover_pb2_grpc


class MoverServicer(mover_pb2_grpc.MoverServiceServicer):
    """The wire face of one `MoverRuntime`."""

    def __init__(self, runtime: MoverRuntime) -> None:
        self._runtime = runtime

    async def Allocate(  # noqa: N802
        self, request: mover_pb2.AllocateRequest, context: Any
    ) -> mover_pb2.AllocateResponse:
        """A LIVE slot for a new session."""
        slot = await self._runtime.allocate(
            identifier(request.session_id, "session_id"),
            whole(request.extent_bytes, "extent_bytes"),
        )
        return mover_pb2.AllocateResponse(slot=ref_to_proto(slot))

    async def MapSlot(  # noqa: N802
        self, request: mover_pb2.MapSlotRequest, context: Any
    ) -> mover_pb2.MapSlotResponse:
        """A one-time token for a slot's descriptor."""
        settings = self._runtime.settings
        token = self._runtime.map_slot(
            ref_from_proto(request.slot, "slot"), identifier(request.session_id, "session_id")
        )
        return mover_pb2.MapSlotResponse(
            socket_path=str(settings.socket_path), token=token, slot_bytes=settings.slot_bytes
        )

    async def Release(  # noqa: N802
        self, request: mover_pb2.ReleaseRequest, context: Any
    ) -> mover_pb2.ReleaseResponse:
        """Give a slot back."""
        released = self._runtime.release(
            ref_from_proto(request.slot, "slot"), identifier(request.session_id, "session_id")
        )
        return mover_pb2.ReleaseResponse(released=released)

    async def Reserve(  # noqa: N802
        self, request: mover_pb2.ReserveRequest, context: Any
    ) -> mover_pb2.ReserveResponse:
        """Redeem a ticket for a SHADOW slot."""
        reservation_id, slot = await self._runtime.reserve(
            ticket_from_proto(request.ticket), layout_from_proto(request.layout)
        )
        return mover_pb2.ReserveResponse(reservation_id=reservation_id, slot=ref_to_proto(slot))

    async def Push(  # noqa: N802
        self, request: mover_pb2.PushRequest, context: Any
    ) -> AsyncIterator[mover_pb2.PushResponse]:
        """Push a frozen slot to a reservation."""
        settings = self._runtime.settings
        order = push_from_proto(
            request,
            chunk_bytes_default=settings.chunk_bytes,
            window_chunks_default=settings.window_chunks,
        )
        async for response in fed_by(Push(self._runtime, order).run):
            yield response

    async def Verify(  # noqa: N802
        self, request: mover_pb2.VerifyRequest, context: Any
    ) -> mover_pb2.VerifyResponse:
        """Read staged bytes back and compare."""
        digests, difference = await self._runtime.verify(
            identifier(request.reservation_id, "reservation_id"),
            manifest_from_proto(request.manifest),
        )
        response = mover_pb2.VerifyResponse(
            equal=difference is None, digests=digests_to_proto(digests)
        )
        if difference is not None:
            failure = move_pb2.Failure(
                reason="DIGEST_MISMATCH",
                message=f"the staged bytes differ: {difference.message}",
                leaf=difference.leaf or "",
                granule=difference.granule,
            )
            response.failure.CopyFrom(failure)
        return response

    async def Promote(  # noqa: N802
        self, request: mover_pb2.PromoteRequest, context: Any
    ) -> mover_pb2.PromoteResponse:
        """SHADOW to LIVE, after an equal verify."""
        self._runtime.promote(
            identifier(request.reservation_id, "reservation_id"),
            ref_from_proto(request.slot, "slot"),
        )
        return mover_pb2.PromoteResponse()

    async def Land(  # noqa: N802
        self, request_iterator: AsyncIterator[mover_pb2.LandRequest], context: Any
    ) -> AsyncIterator[mover_pb2.LandResponse]:
        """Receive a push."""

        async def work(emit: Callable[[mover_pb2.LandResponse], None]) -> None:
            await land(self._runtime, aiter(request_iterator), emit)

        async for response in fed_by(work):
            yield response

    async def DescribeMover(  # noqa: N802
        self, request: mover_pb2.DescribeMoverRequest, context: Any
    ) -> mover_pb2.DescribeMoverResponse:
        """Slots, reservations and counts."""
        runtime = self._runtime
        slots = [
            mover_pb2.DescribeMoverResponse.Slot(
                slot=ref_to_proto(state.ref),
                role=move_pb2.SlotRole.Name(state.role),
                session_id=state.session_id,
                extent_bytes=state.extent_bytes,
            )
            for state in runtime.slots.states()
        ]
        return mover_pb2.DescribeMoverResponse(
            node_id=runtime.node_id,
            slot_bytes=runtime.settings.slot_bytes,
            slots=slots,
            reservations=runtime.reservations.ids(),
            census=move_pb2.Census(counts=runtime.census()),
        )
