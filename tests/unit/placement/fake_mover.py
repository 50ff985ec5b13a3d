"""In-test mover of placement: it enforces who holds which slot, see `fake_engine`."""

# gRPC names its methods.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.unit.placement.faults import DIGESTS, Faults
from tests.unit.placement.park_fakes import ParkedCopies
from worldline.errors import CapacityExhausted, TicketRefused
from worldline.state.codec import (
    digests_to_proto,
)
from worldline.v1 import (
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
)


class FakeMover(ParkedCopies, mover_pb2_grpc.MoverServiceServicer):
    """Slots by (index, generation): who has it, in which role."""

    def __init__(self, name: str, faults: Faults, slots_total: int = 4) -> None:
        super().__init__()
        self.name = name
        self.faults = faults
        self.slots_total = slots_total
        self.slots: dict[tuple[int, int], tuple[str, str]] = {}
        self.generation = 0
        self.digests = DIGESTS
        self.landed = DIGESTS
        self.push_cancelled = asyncio.Event()
        self.promoted = asyncio.Event()
        #: Everything of the latest push to here is here.
        self.has_landed = asyncio.Event()
        self.ticket_ran_out = asyncio.Event()
        self.wires: list[mover_pb2.DescribeMoverResponse.Wire] = []
        #: Pushes whose client went while they waited for their wire.
        self.withdrawn = asyncio.Event()

    def allocate(self, session_id: str, role: str) -> move_pb2.SlotRef:
        taken = {index for index, _ in self.slots}
        free = [index for index in range(self.slots_total) if index not in taken]
        if not free:
            raise CapacityExhausted("no free slot")
        self.generation += 1
        self.slots[free[0], self.generation] = (session_id, role)
        return move_pb2.SlotRef(node_id=self.name, slot_index=free[0], generation=self.generation)

    async def _do(self, method: str, work: Callable[[], Any]) -> Any:
        return await self.faults.around(f"{self.name}.{method}", work)

    async def Reserve(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            claims = move_pb2.TicketClaims.FromString(request.ticket.claims)
            slot = self.allocate(claims.session_id, "shadow")
            return mover_pb2.ReserveResponse(reservation_id=claims.ticket_id, slot=slot)

        return await self._do("Reserve", work)

    async def Push(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        requests = aiter(request_iterator)
        request = (await anext(requests)).order
        claims = move_pb2.TicketClaims.FromString(request.ticket.claims)
        kind = "Probe" if claims.purpose == move_pb2.MOVE_PURPOSE_PROBE else "Push"
        extent_bytes = request.layout.extent_bytes
        if kind == "Push":
            self.peer_landed(claims.target_node_id).clear()
            try:
                await self._do("Arm", lambda: None)
            except asyncio.CancelledError:
                self.withdrawn.set()
                raise
        yield mover_pb2.PushResponse(armed=mover_pb2.PushArmed())
        going = asyncio.ensure_future(anext(requests, None))
        late = asyncio.ensure_future(self.ticket_ran_out.wait())
        try:
            await asyncio.wait({going, late}, return_when=asyncio.FIRST_COMPLETED)
            if not going.done():
                raise TicketRefused("too late", reason="TICKET_EXPIRED")
            if (message := going.result()) is None:
                self.push_cancelled.set()
                return
        finally:
            going.cancel()
            late.cancel()
            await asyncio.gather(going, late, return_exceptions=True)
        assert message.WhichOneof("event") == "go"
        yield mover_pb2.PushResponse(
            progress=mover_pb2.PushProgress(sent_bytes=extent_bytes // 2, total_bytes=extent_bytes)
        )
        try:
            await self._do(kind, lambda: None)
        except asyncio.CancelledError:
            self.push_cancelled.set()
            raise
        target = claims.target_node_id
        slot = next(iter(self.peer_slots(target, claims.session_id)))
        outcome = mover_pb2.PushOutcome(
            push_stats=move_pb2.PushStats(
                wire_bytes=extent_bytes,
                chunks=1,
                wire_ms=1.0,
                verification=request.verification or move_pb2.VERIFICATION_TAIL,
                lanes=["memory"],
            )
        )
        if kind == "Push":
            outcome.digests.CopyFrom(digests_to_proto(self.digests))
            outcome.receipt.CopyFrom(
                move_pb2.Receipt(
                    move_id=claims.move_id,
                    slot=slot,
                    topology_hash=request.layout.topology_hash,
                    digests=digests_to_proto(self.landed),
                    received_bytes=extent_bytes,
                )
            )
        self.peer_landed(target).set()
        yield mover_pb2.PushResponse(outcome=outcome)

    #: Set by the cluster: slots that a session has on a node.
    peer_slots: Callable[[str, str], list[move_pb2.SlotRef]]
    #: And where it is told that everything has landed.
    peer_landed: Callable[[str], asyncio.Event]

    async def Verify(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            if self.digests == DIGESTS:
                if request.promote:
                    self.promote()
                return mover_pb2.VerifyResponse(equal=True, digests=digests_to_proto(DIGESTS))
            return mover_pb2.VerifyResponse(
                equal=False,
                digests=digests_to_proto(self.digests),
                failure=move_pb2.Failure(
                    reason="DIGEST_MISMATCH", message="differs", leaf="kv", granule=1
                ),
            )

        if request.landing:
            assert not request.manifest.HasField("digests")
            await self.has_landed.wait()
        return await self._do("Verify", work)

    def promote(self) -> None:
        """A test moves one session at a time: a SHADOW slot is what was verified."""
        for key, (session_id, role) in self.slots.items():
            if role == "shadow":
                self.slots[key] = (session_id, "live")
                self.promoted.set()

    async def Release(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            key = (request.slot.slot_index, request.slot.generation)
            return mover_pb2.ReleaseResponse(released=self.slots.pop(key, None) is not None)

        return await self._do("Release", work)

    async def DescribeMover(self, request: Any, context: Any) -> Any:
        roles = {"shadow": move_pb2.SLOT_ROLE_SHADOW, "live": move_pb2.SLOT_ROLE_LIVE}

        def work() -> Any:
            return mover_pb2.DescribeMoverResponse(
                node_id=self.name,
                slots=[
                    mover_pb2.DescribeMoverResponse.Slot(
                        slot=move_pb2.SlotRef(
                            node_id=self.name, slot_index=index, generation=generation
                        ),
                        role=roles[role],
                        session_id=session_id,
                        extent_bytes=7,
                    )
                    for (index, generation), (session_id, role) in self.slots.items()
                ],
                wires=self.wires,
            )

        return await self._do("DescribeMover", work)
