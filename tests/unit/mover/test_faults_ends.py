"""Faults of an end: one that says nothing, or goes away.

Each ends in bounded time with a typed error or with a verified state, never with anything else;
afterwards both slots serve the next move, and nothing of this one is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from services.mover.go import GO_INDEX, GoFormat
from services.mover.offer import Frozen, Offer, Shape, offer_to_proto
from services.mover.reservation import ReservationState
from services.mover.seal import SEAL_INDEX
from services.mover.slots import SlotRole
from services.mover.transfer import Verification
from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.plane import Plane, Work
from services.mover.transport.threadplane import ThreadPlane
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import MEBIBYTE, until
from tests.unit.mover.faulty import FaultyTransport
from tests.unit.mover.spoiled_wire import (
    FACTORIES,
    LAYOUT,
    LONG_LEASE_S,
    SIZES,
    SLACK_S,
    Wire,
    within,
)
from worldline.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    TicketRefused,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.channel import call
from worldline.rpc.duplex import Duplex
from worldline.rpc.push import PushCall
from worldline.rpc.server import GrpcServer
from worldline.ticket import SignedTicket
from worldline.v1 import mover_pb2, mover_pb2_grpc

# --- somebody says nothing -----------------------------------------------------------------------


class _Silent(mover_pb2_grpc.MoverServiceServicer):
    """Takes an offer and never answers, or answers with the end of the stream."""

    def __init__(self, hangs: bool) -> None:
        self.offered = asyncio.Event()
        self.left = asyncio.Event()
        self._hangs = hangs

    async def Land(self, requests: Any, context: Any) -> Any:  # noqa: N802
        await anext(aiter(requests))
        self.offered.set()
        try:
            if self._hangs:
                await asyncio.Event().wait()
        finally:
            self.left.set()
        return
        yield


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_receiver_that_never_grants(wire: Wire, hangs: bool) -> None:
    cluster = wire.cluster
    servicer, server = _Silent(hangs), GrpcServer()
    server.bind("127.0.0.1:0")
    add = mover_pb2_grpc.add_MoverServiceServicer_to_server
    server.add(add, servicer, "worldline.v1.MoverService")
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop, 0.2)
        valid_s = 6.0 if hangs else LONG_LEASE_S
        ticket = cluster.ticket(LAYOUT, valid_for_ms=round(valid_s * 1e3))
        order = cluster.order(
            ticket, cluster.manifest(LAYOUT), "r", wire.slot, target_mover_address=server.address
        )
        push = PushCall(cluster.nodes["a"].stub, order, 60)
        async with within(valid_s if hangs else 0):
            with pytest.raises(WorldlineError) as caught:
                await push.arm()
            await push.close()
        wanted = (TicketRefused, "TICKET_EXPIRED") if hangs else (TransferFailed, "TARGET_GONE")
        assert (type(caught.value), caught.value.reason) == wanted
        assert servicer.offered.is_set()
        await asyncio.wait_for(servicer.left.wait(), SLACK_S)
    await cluster.nodes["a"].until_quiet()
    await wire.check_serves()


@asynccontextmanager
async def raw_land(
    wire: Wire, ticket: SignedTicket, reservation_id: str, *, goes: bool
) -> AsyncIterator[Duplex]:
    """A source of the test's own: its stream, once the target has granted it the wire.

    `goes`: it has said what it froze, and that it sends from now on.
    """
    source, target = wire.cluster.nodes["a"], wire.cluster.nodes["b"]
    stream = Duplex(target.stub.Land())
    offer = Offer(
        ticket=ticket,
        reservation_id=reservation_id,
        session_id="session-1",
        epoch=4,
        layout=LAYOUT,
        shape=Shape(Verification.PIPELINED, MEBIBYTE, 4),
        worker_address=source.runtime.transport.address,
    )
    try:
        await stream.write(mover_pb2.LandRequest(offer=offer_to_proto(offer)))
        answer = await stream.read()
        assert answer is not None
        assert answer.WhichOneof("event") == "grant"
        if goes:
            endpoint = await source.runtime.transport.connect(answer.grant.worker_address)
            message = GoFormat.of(LAYOUT).pack(Frozen(17, LAYOUT))
            await endpoint.send(message, answer.grant.tag_base + GO_INDEX).wait()
            reservation = target.runtime.reservations.get(reservation_id)
            await until(lambda: reservation.state is ReservationState.LANDING)
            await source.runtime.transport.park(endpoint)
        yield stream
    finally:
        await stream.close()


@pytest.mark.parametrize("goes", [False, True])
async def test_a_source_that_arms_and_says_nothing_more(wire: Wire, goes: bool) -> None:
    """The lease ends it, before the go and after it: the sender need not fail to be gone."""
    ticket = wire.cluster.ticket(LAYOUT, valid_for_ms=60_000, lease_ms=60_000)
    reserved = await wire.cluster.reserve(ticket, LAYOUT)
    async with raw_land(wire, ticket, reserved.reservation_id, goes=goes) as stream:
        reservation = wire.cluster.nodes["b"].runtime.reservations.get(reserved.reservation_id)
        assert reservation.state is (ReservationState.LANDING if goes else ReservationState.GRANTED)
        async with within(0):
            with (
                wire.cluster.nodes["b"].later(LONG_LEASE_S),
                pytest.raises(DeadlineExceeded) as caught,
            ):
                await stream.read()
        assert caught.value.reason == "LEASE_EXPIRED"
    await wire.check_ended(reserved)


async def test_a_source_that_leaves_at_each_step_is_noticed_before_any_deadline(wire: Wire) -> None:
    """Fault 11."""
    for goes in (False, True):
        ticket = wire.cluster.ticket(LAYOUT, valid_for_ms=60_000, lease_ms=60_000)
        reserved = await wire.cluster.reserve(ticket, LAYOUT)
        async with raw_land(wire, ticket, reserved.reservation_id, goes=goes):
            pass
        await wire.cluster.nodes["b"].until_free(reserved.slot)
    await wire.check_ended(reserved)


# --- an end goes away ----------------------------------------------------------------------------


@pytest.mark.parametrize("wire", sorted(FACTORIES), indirect=True)
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_an_endpoint_that_closes_in_the_middle(wire: Wire, side: str, share: float) -> None:
    """Either end's, at the first chunk, half way, and with everything but the seal on its way."""
    count = -(-LAYOUT.extent_bytes // MEBIBYTE)
    index = min(round(share * count), count - 1)
    closed: list[asyncio.Task[None]] = []

    def close(at: int, view: memoryview) -> memoryview | None:
        if at == index and not closed:
            (endpoint,) = wire.ends[side].used
            closed.append(asyncio.create_task(endpoint.inner.abort()))
        # With the seal a target may have landed everything before its thread hears of the close.
        return None if side == "b" and at == SEAL_INDEX else view

    for end in wire.ends.values():
        end.used.clear()
    wire.ends["a"].on_send = close
    reserved, pushing = await wire.begin(LONG_LEASE_S, chunk_bytes=MEBIBYTE, window_chunks=2)
    async with within(0):
        with pytest.raises(TransferFailed):
            await pushing
    assert closed
    await asyncio.gather(*closed)
    await wire.check_ended(reserved)


@pytest.mark.parametrize("plane", [ThreadPlane, LoopPlane])
@pytest.mark.parametrize("side", ["a", "b"])
async def test_a_data_plane_that_fails_in_the_middle(
    build: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    side: str,
    plane: Callable[[Work], Plane],
) -> None:
    """Every request ends, the push fails by name, and the mover's owner is told to end."""
    ends = {name: FaultyTransport(UcxTransport(plane=plane)) for name in ("a", "b")}
    cluster = await build(ends["a"], ends["b"], **SIZES)
    wire = Wire(cluster, ends, await cluster.live_slot(LAYOUT))
    broken = ends[side].inner
    assert isinstance(broken, UcxTransport)

    def fail(at: int, view: memoryview) -> memoryview:
        if at == 3:
            assert broken._worker is not None

            def turn() -> bool:
                raise RuntimeError("the wire is gone")

            monkeypatch.setattr(broken._worker, "turn", turn)
        return view

    ends["a"].on_send = fail
    reserved, pushing = await wire.begin(LONG_LEASE_S, chunk_bytes=MEBIBYTE, window_chunks=2)
    async with within(0):
        with pytest.raises(WorldlineError) as caught:
            await pushing
        with pytest.raises(Unavailable) as told:
            await broken.watch()
    assert "the wire is gone" in caught.value.message
    assert told.value.reason == "DATA_PLANE_FAILED"
    (ended,) = await asyncio.gather(
        *(loop for loop in cluster.nodes[side].runtime.loops if "watch" in loop.get_name()),
        return_exceptions=True,
    )
    assert ended is told.value
    await cluster.nodes["b"].until_free(reserved.slot)
    for node in cluster.nodes.values():
        await node.until_quiet()
        assert node.runtime.census()["requests_outstanding"] == 0
        assert all(state.pins == 0 for state in node.runtime.slots.states())
    assert cluster.nodes["a"].role(wire.slot) is SlotRole.LIVE


async def test_the_next_tenant_never_sees_the_last_ones_bytes(build: Callable[..., Any]) -> None:
    """Fault 4: over the real wire, a slot changes hands in mid-transfer again and again."""
    cluster = await build(UcxTransport(), UcxTransport(), slot_count=1)
    slot = await cluster.live_slot(LAYOUT)
    source = cluster.nodes["a"]
    for round_number in range(12):
        ticket = cluster.ticket(LAYOUT)
        reserved = await cluster.reserve(ticket, LAYOUT)
        manifest, name = cluster.manifest(LAYOUT), reserved.reservation_id
        pushing = asyncio.ensure_future(
            cluster.push(ticket, manifest, name, slot, chunk_bytes=MEBIBYTE, window_chunks=4)
        )
        for _ in range(round_number * 8):
            await asyncio.sleep(0)
        await cluster.release("b", reserved.slot)
        await asyncio.gather(pushing, return_exceptions=True)
        request = mover_pb2.AllocateRequest(session_id="next", extent_bytes=LAYOUT.extent_bytes)
        async with asyncio.timeout(SLACK_S):
            while True:
                try:
                    mine = (
                        await call(cluster.nodes["b"].stub.Allocate, request, timeout_s=60)
                    ).slot
                    break
                except CapacityExhausted:
                    await asyncio.sleep(0.002)
        tenant = np.frombuffer(cluster.view("b", mine), np.uint8)[: LAYOUT.extent_bytes]
        assert not tenant.any()
        await source.until_quiet()
        assert not tenant.any(), "written to after it had changed hands"
        del tenant
        await cluster.release("b", mine, "next")
