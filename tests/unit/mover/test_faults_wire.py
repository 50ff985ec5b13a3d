"""Faults on the wire: messages that are lost, cut or changed, ends that go silent or go away.

Each ends in bounded time with a typed error or with a verified state, never with anything else;
afterwards both slots serve the next move, and nothing of this one is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from services.mover import pushing as pushing_module
from services.mover.chunking import CHUNK_INDEX_BITS
from services.mover.go import GO_INDEX, GoFormat
from services.mover.landing import Landing
from services.mover.offer import Frozen, Offer, Shape, offer_to_proto
from services.mover.pushing import Push
from services.mover.reservation import ReservationState
from services.mover.seal import ANSWER_INDEX, SEAL_INDEX, Seal, pack_seal, unpack_seal
from services.mover.slots import SlotRole
from services.mover.transfer import Verification
from services.mover.transport.base import Buffer, Request, Transport
from services.mover.transport.lanes import Lane
from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.plane import Plane, Work
from services.mover.transport.threadplane import ThreadPlane
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import MEBIBYTE, Cluster, layout_of, until
from tests.unit.mover.faulty import FaultyEndpoint, FaultyTransport, SendHook
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    TicketRefused,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.channel import call
from worldline.rpc.duplex import Duplex
from worldline.rpc.push import PushCall
from worldline.rpc.server import GrpcServer
from worldline.state.layout import Layout, flat_layout
from worldline.state.segment_digests import SegmentDigests
from worldline.ticket import SignedTicket
from worldline.v1 import move_pb2, mover_pb2, mover_pb2_grpc

FACTORIES: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "in-place": UcxTransport,
    "tcp": lambda: UcxTransport(lane=Lane.TCP),
    "on-the-loop": lambda: UcxTransport(plane=LoopPlane),
}
LAYOUT = layout_of()
#: One slot each: the next move takes the one that this move has left.
SIZES = {"slot_count": 1, "slot_bytes": 12 * MEBIBYTE}
#: Nobody waits for more than its lease and this, on a machine with much else to do.
SLACK_S = 60.0
LEASE_S = 0.4
#: Within this everything lands, where it is to have landed when the lease ends.
LANDED_S = 8.0
#: Longer than that: what ends within the slack has not ended by its lease.
LONG_LEASE_S = 60.0


def unchanged(_: int, view: memoryview) -> memoryview:
    return view


@dataclass
class Wire:
    """Movers `a` and `b` on a wire that a test can spoil at either end."""

    cluster: Cluster
    ends: dict[str, FaultyTransport]
    slot: move_pb2.SlotRef

    async def push(self, lease_s: float, **changes: Any) -> tuple[Any, mover_pb2.PushOutcome]:
        """One push; the reservation as well."""
        reserved, pushing = await self.begin(lease_s, **changes)
        return reserved, await pushing

    async def begin(
        self, lease_s: float, **changes: Any
    ) -> tuple[mover_pb2.ReserveResponse, asyncio.Future[mover_pb2.PushOutcome]]:
        """The same under way."""
        ticket = self.cluster.ticket(LAYOUT, lease_ms=round(lease_s * 1e3), valid_for_ms=60_000)
        reserved = await self.cluster.reserve(ticket, LAYOUT)

        async def outcome() -> mover_pb2.PushOutcome:
            manifest, name = self.cluster.manifest(LAYOUT), reserved.reservation_id
            where = ticket, manifest, name, self.slot
            return (await self.cluster.push(*where, timeout_s=2 * LONG_LEASE_S, **changes))[0]

        return reserved, asyncio.ensure_future(outcome())

    async def check_ended(self, reserved: mover_pb2.ReserveResponse) -> None:
        """Nothing was installed or ever can be; both slots serve again; nothing is left."""
        source, target = self.cluster.nodes["a"], self.cluster.nodes["b"]
        await target.until_free(reserved.slot)
        with pytest.raises(Conflict) as caught:
            await self.cluster.promote(reserved.reservation_id, reserved.slot)
        assert caught.value.reason == "RESERVATION_ENDED"
        assert source.role(self.slot) is SlotRole.LIVE
        await self.check_serves()

    async def check_serves(self) -> None:
        """The next move goes through, the source's slot can be given back at once."""
        for end in self.ends.values():
            end.on_send = unchanged
        reserved, outcome = await self.push(LONG_LEASE_S)
        assert outcome.digests == outcome.receipt.digests
        assert await self.cluster.release("b", reserved.slot)
        for name in ("a", "b"):
            node = self.cluster.nodes[name]
            await node.until_quiet()
            census = node.runtime.census()
            assert census["endpoints"] == census["requests_outstanding"] == census["landings"] == 0
            assert all(state.pins == 0 for state in node.runtime.slots.states())
        assert await self.cluster.release("a", self.slot)
        assert self.cluster.nodes["a"].role(self.slot) is SlotRole.FREE


@pytest.fixture(params=["in-place", "memory", "on-the-loop"])
async def wire(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Wire:
    factory = FACTORIES[request.param]
    ends = {name: FaultyTransport(factory()) for name in ("a", "b")}
    cluster = await build(ends["a"], ends["b"], **SIZES)
    return Wire(cluster, ends, await cluster.live_slot(LAYOUT))


@asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """What is inside neither hangs nor outlasts the limit."""
    async with asyncio.timeout(limit_s + SLACK_S):
        yield


def instead_of(index: int, change: Callable[[memoryview], memoryview | None]) -> SendHook:
    """Send something else, or nothing, in place of one message of a transfer."""
    return lambda at, view: change(view) if at == index else view


# --- the go ------------------------------------------------------------------------------------


def repacked(layout: Layout) -> memoryview:
    """A go that agrees with itself, in the message that the target expects."""
    room, go = GoFormat.of(LAYOUT), GoFormat.of(layout)
    return replace(go, go_bytes=room.go_bytes).pack(Frozen(17, layout))


#: What is sent in its place, and which field of it is then refused.
GOES: dict[str, tuple[Callable[[memoryview], memoryview], str]] = {
    "empty": (lambda view: memoryview(bytearray()), "go"),
    "cut": (lambda view: view[:-1], "go"),
    "of zeros": (lambda view: memoryview(bytearray(view.nbytes)), "go"),
    "of another layout": (lambda view: repacked(flat_layout("leaf", 5)), "scalars"),
}


@pytest.mark.parametrize("verification", ["VERIFICATION_PIPELINED", "VERIFICATION_OFF"])
@pytest.mark.parametrize("kind", sorted(GOES))
async def test_a_go_that_says_nothing_of_use_is_refused(
    wire: Wire, kind: str, verification: str
) -> None:
    change, field = GOES[kind]
    wire.ends["a"].on_send = instead_of(GO_INDEX, change)
    reserved, pushing = await wire.begin(LONG_LEASE_S, verification=verification)
    async with within(0):
        with pytest.raises(InvalidInput) as caught:
            await pushing
    assert caught.value.field == field
    await wire.check_ended(reserved)


async def test_a_go_that_is_longer_is_refused(wire: Wire) -> None:
    longer = instead_of(GO_INDEX, lambda view: memoryview(bytearray(view) + bytearray(8)))
    wire.ends["a"].on_send = longer
    reserved, pushing = await wire.begin(LONG_LEASE_S)
    async with within(0):
        with pytest.raises(TransferFailed) as caught:
            await pushing
    assert caught.value.reason == "TRUNCATED"
    await wire.check_ended(reserved)


async def test_a_go_that_never_comes_ends_at_the_lease(wire: Wire) -> None:
    """Everything else has landed and is sealed: it is not known of what."""
    wire.ends["a"].on_send = instead_of(GO_INDEX, lambda view: None)
    reserved, pushing = await wire.begin(LEASE_S)
    async with within(LEASE_S):
        with pytest.raises(DeadlineExceeded) as caught:
            await pushing
    assert caught.value.reason == "LEASE_EXPIRED"
    await wire.check_ended(reserved)


async def test_a_go_that_comes_twice_is_one(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    send = FaultyEndpoint.send

    def twice(endpoint: FaultyEndpoint, buffer: Buffer, tag: int, *reader: Any) -> Request:
        request = send(endpoint, buffer, tag, *reader)
        if tag % (1 << CHUNK_INDEX_BITS) == GO_INDEX:
            send(endpoint, buffer, tag, *reader)
        return request

    monkeypatch.setattr(FaultyEndpoint, "send", twice)
    async with within(0):
        reserved, outcome = await wire.push(LONG_LEASE_S)
    assert outcome.digests == outcome.receipt.digests
    assert await wire.cluster.release("b", reserved.slot)
    await wire.check_serves()


async def test_scalars_that_have_outgrown_their_go_fail_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's own fault: nobody waits for the target's reason while a world stands still."""
    monkeypatch.setattr(pushing_module, "_REASON_S", 2 * LONG_LEASE_S)
    cluster, ticket = wire.cluster, wire.cluster.ticket(LAYOUT, lease_ms=60_000)
    reserved = await cluster.reserve(ticket, LAYOUT)
    order = cluster.order(ticket, cluster.manifest(LAYOUT), reserved.reservation_id, wire.slot)
    push = PushCall(cluster.nodes["a"].stub, order, 2 * LONG_LEASE_S)
    async with within(0):
        await push.arm()
        await push.go(17, LAYOUT.with_scalars({LAYOUT.scalars[0].path: b"x" * 10_000}))
        with pytest.raises(InvalidInput) as caught:
            await push.outcome()
        await push.close()
    assert caught.value.field == "go.scalars"
    await wire.check_ended(reserved)


# --- the seal ----------------------------------------------------------------------------------


def resealed(view: memoryview, **changes: Any) -> memoryview:
    """Another seal that agrees with itself."""
    seal = unpack_seal(view, verification_on=True)
    digests = seal.digests
    assert digests is not None
    values = {"sent_bytes": seal.sent_bytes, "crcs": digests.crcs, "header": digests.header}
    values.update(changes)
    own = SegmentDigests(values["crcs"], values["header"])
    return pack_seal(Seal(values["sent_bytes"], own))


def crcs_of(view: memoryview) -> Any:
    seal = unpack_seal(view, verification_on=True)
    assert seal.digests is not None
    return seal.digests.crcs


SEALS: dict[str, Callable[[memoryview], memoryview | None]] = {
    "empty": lambda view: memoryview(bytearray()),
    "of 8 bytes": lambda view: view[:8],
    "without its last byte": lambda view: view[:-1],
    "without its check": lambda view: view[:-8],
    "of fewer segments": lambda view: resealed(view, crcs=crcs_of(view)[:-1]),
    "of zeros": lambda view: memoryview(bytearray(view.nbytes)),
}


@pytest.mark.parametrize("kind", sorted(SEALS))
async def test_a_seal_that_is_cut_is_refused(wire: Wire, kind: str) -> None:
    """Fault 6: what cannot be compared is never taken as equal."""
    wire.ends["a"].on_send = instead_of(SEAL_INDEX, SEALS[kind])
    reserved, pushing = await wire.begin(LONG_LEASE_S)
    async with within(0):
        with pytest.raises(InvalidInput) as caught:
            await pushing
    assert caught.value.field == "seal"
    await wire.check_ended(reserved)


@pytest.mark.parametrize("extra", ["bytes", "segments"])
async def test_a_seal_that_is_longer_is_refused(wire: Wire, extra: str) -> None:
    def longer(view: memoryview) -> memoryview:
        if extra == "bytes":
            return memoryview(bytearray(view) + bytearray(8))
        crcs = crcs_of(view)
        return resealed(view, crcs=crcs.repeat(2))

    wire.ends["a"].on_send = instead_of(SEAL_INDEX, longer)
    reserved, pushing = await wire.begin(LONG_LEASE_S)
    async with within(0):
        with pytest.raises(TransferFailed) as caught:
            await pushing
    assert caught.value.reason == "TRUNCATED"
    await wire.check_ended(reserved)


@pytest.mark.parametrize("sent_bytes", [0, LAYOUT.extent_bytes - 1, LAYOUT.extent_bytes + 1])
async def test_a_seal_over_fewer_bytes_is_refused(wire: Wire, sent_bytes: int) -> None:
    change = instead_of(SEAL_INDEX, lambda view: resealed(view, sent_bytes=sent_bytes))
    wire.ends["a"].on_send = change
    reserved, pushing = await wire.begin(LONG_LEASE_S)
    async with within(0):
        with pytest.raises(TransferFailed) as caught:
            await pushing
    assert caught.value.reason == "TRUNCATED"
    await wire.check_ended(reserved)


async def test_a_seal_that_never_comes_ends_at_the_lease(wire: Wire) -> None:
    """Fault 9 at 100 % of the bytes: everything has landed, and nobody said what it was."""
    wire.ends["a"].on_send = instead_of(SEAL_INDEX, lambda view: None)
    reserved, pushing = await wire.begin(LEASE_S)
    async with within(LEASE_S):
        with pytest.raises(DeadlineExceeded) as caught:
            await pushing
    assert caught.value.reason == "LEASE_EXPIRED"
    await wire.check_ended(reserved)


# --- the answer and the receipt ------------------------------------------------------------------


ANSWERS: dict[str, Callable[[memoryview], memoryview | None]] = {
    "lost": lambda view: None,
    "cut": lambda view: view[:3],
    "of zeros": lambda view: memoryview(bytearray(view.nbytes)),
    "longer": lambda view: memoryview(bytearray(view) + bytearray(8)),
}


@pytest.mark.parametrize("kind", sorted(ANSWERS))
async def test_an_answer_that_is_lost_or_changed_costs_the_endpoint_alone(
    wire: Wire, kind: str
) -> None:
    """Fault 10: all has landed, and the receipt says so; the answer only says it sooner."""
    wire.ends["b"].on_send = instead_of(ANSWER_INDEX, ANSWERS[kind])
    async with within(0):
        reserved, outcome = await wire.push(LONG_LEASE_S)
    assert outcome.digests == outcome.receipt.digests
    assert outcome.push_stats.wire_ms > 0
    await wire.cluster.promote(reserved.reservation_id, reserved.slot)
    assert await wire.cluster.release("b", reserved.slot)
    await wire.cluster.nodes["b"].until_free(reserved.slot)
    await wire.check_serves()


async def test_a_receipt_that_never_comes_ends_at_the_lease(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 10: the wire's answer alone commits nothing, for it names neither slot nor digests."""

    async def deaf(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Push, "_hear", deaf)
    reserved, pushing = await wire.begin(LANDED_S)
    async with within(LANDED_S):
        with pytest.raises(DeadlineExceeded) as caught:
            await pushing
    monkeypatch.undo()
    assert caught.value.reason == "LEASE_EXPIRED"
    # The target has done its part; what it holds is placement's to give back.
    assert wire.cluster.nodes["b"].role(reserved.slot) is SlotRole.SHADOW
    assert await wire.cluster.release("b", reserved.slot)
    await wire.check_ended(reserved)


async def test_a_receipt_that_is_lost_with_its_stream_is_a_failed_push(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ConnectionResetError("the stream broke")

    monkeypatch.setattr(Landing, "_receipt", broken)
    reserved, pushing = await wire.begin(LONG_LEASE_S)
    async with within(0):
        with pytest.raises(WorldlineError) as caught:
            await pushing
    monkeypatch.undo()
    assert caught.value.reason
    assert await wire.cluster.release("b", reserved.slot)
    await wire.check_ended(reserved)


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
