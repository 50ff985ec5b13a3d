"""Mover servicer: parses each call once, asks the runtime, answers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from services.mover.landing import land
from services.mover.parkorder import order_from_proto
from services.mover.pushing import push
from services.mover.runtime import MoverRuntime
from services.mover.slots import ref_from_proto, ref_to_proto
from services.mover.tasks import fed_by
from services.mover.verifying import verify, verify_landing
from services.mover.wirekeeper import KeptWire
from worldline.fields import identifier, whole
from worldline.park import park_id
from worldline.state.codec import (
    digests_to_proto,
    layout_from_proto,
    manifest_from_proto,
    manifest_to_proto,
)
from worldline.ticket import ticket_from_proto
from worldline.v1 import move_pb2, mover_pb2, mover_pb2_grpc, park_pb2


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
            request.device,
        )
        return mover_pb2.AllocateResponse(slot=ref_to_proto(slot))

    async def MapSlot(  # noqa: N802
        self, request: mover_pb2.MapSlotRequest, context: Any
    ) -> mover_pb2.MapSlotResponse:
        """A one-time token for a slot's memory."""
        runtime = self._runtime
        token, state = runtime.map_slot(
            ref_from_proto(request.slot, "slot"), identifier(request.session_id, "session_id")
        )
        return mover_pb2.MapSlotResponse(
            socket_path=str(runtime.settings.socket_path),
            token=token,
            slot_bytes=runtime.slots.shelf(state.device).slot_bytes,
            device=state.device,
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
            ticket_from_proto(request.ticket), layout_from_proto(request.layout), request.device
        )
        return mover_pb2.ReserveResponse(reservation_id=reservation_id, slot=ref_to_proto(slot))

    async def Push(  # noqa: N802
        self, request_iterator: AsyncIterator[mover_pb2.PushRequest], context: Any
    ) -> AsyncIterator[mover_pb2.PushResponse]:
        """Push a slot to a reservation."""

        async def work(emit: Callable[[mover_pb2.PushResponse], None]) -> None:
            await push(self._runtime, aiter(request_iterator), emit)

        async for response in fed_by(work):
            yield response

    async def Verify(  # noqa: N802
        self, request: mover_pb2.VerifyRequest, context: Any
    ) -> mover_pb2.VerifyResponse:
        """Read staged bytes back, compare, and promote them where asked to."""
        read_back = verify_landing if request.landing else verify
        digests, difference = await read_back(
            self._runtime,
            identifier(request.reservation_id, "reservation_id"),
            manifest_from_proto(request.manifest),
            promote=request.promote,
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
                device=state.device,
            )
            for state in runtime.slots.states()
        ]
        return mover_pb2.DescribeMoverResponse(
            node_id=runtime.node_id,
            slot_bytes=runtime.settings.slot_bytes,
            slots=slots,
            reservations=runtime.reservations.ids(),
            parked=runtime.parking.listing(),
            wires=[_wire(each) for each in runtime.wires.listing()],
            census=move_pb2.Census(counts=runtime.census()),
        )

    async def Park(  # noqa: N802
        self, request: park_pb2.ParkRequest, context: Any
    ) -> park_pb2.ParkResponse:
        """Copy a frozen slot to where it may stay."""
        parked = await self._runtime.parking.park(order_from_proto(request))
        return park_pb2.ParkResponse(
            digests=digests_to_proto(parked.digests), stats=parked.figures.to_proto()
        )

    async def Unpark(  # noqa: N802
        self, request: park_pb2.UnparkRequest, context: Any
    ) -> park_pb2.UnparkResponse:
        """A LIVE slot with the parked state."""
        unparked = await self._runtime.parking.unpark(
            park_id(request.park_id),
            identifier(request.session_id, "session_id"),
            request.device,
        )
        return park_pb2.UnparkResponse(
            slot=ref_to_proto(unparked.slot),
            manifest=manifest_to_proto(unparked.manifest),
            stats=unparked.figures.to_proto(),
        )

    async def DropParked(  # noqa: N802
        self, request: park_pb2.DropParkedRequest, context: Any
    ) -> park_pb2.DropParkedResponse:
        """Give a parked copy up."""
        dropped = await self._runtime.parking.drop(
            park_id(request.park_id), identifier(request.session_id, "session_id")
        )
        return park_pb2.DropParkedResponse(dropped=dropped)


def _wire(kept: KeptWire) -> mover_pb2.DescribeMoverResponse.Wire:
    claims, remaining_s = kept.claims, kept.remaining_s
    return mover_pb2.DescribeMoverResponse.Wire(
        ticket_id=claims.ticket_id,
        move_id=claims.move_id,
        source_node_id=claims.source_node_id,
        target_node_id=claims.target_node_id,
        held=kept.held,
        waited_ms=round(kept.waited_s * 1e3),
        # Rounded up: 0 says that there is no deadline.
        remaining_ms=0 if remaining_s is None else max(1, math.ceil(remaining_s * 1e3)),
    )
