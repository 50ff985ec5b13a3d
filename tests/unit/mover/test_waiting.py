"""Offers that wait for the wire: what ends the wait, what does not, and what it leaves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.mover.offer import Offer, Shape, offer_to_proto
from services.mover.reservation import ReservationState
from services.mover.transfer import Verification
from services.mover.transport.memory import MemoryTransport
from services.mover.wires import WireAsk, WireDirection
from services.mover.wirewait import WireWait
from tests.unit.mover.cluster import MEBIBYTE, Cluster, Node, layout_of, until
from tests.unit.mover.faulty import FaultyTransport, stop_after
from tests.unit.mover.test_tickets import claims
from worldline.errors import (
    CapacityExhausted,
    InvalidInput,
    TicketRefused,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.duplex import Duplex
from worldline.rpc.push import PushCall
from worldline.ticket import SignedTicket
from worldline.v1 import mover_pb2

LAYOUT = layout_of()
SLACK_S = 60.0
HORIZON_MS = 60_000.0


@asynccontextmanager
async def busy(node: Node, direction: WireDirection) -> AsyncIterator[None]:
    """Somebody else holds the node's wire."""
    now_s = node.runtime.now()
    ask = WireAsk("other", direction, "elsewhere", False, math.inf, 0.0, 0.0)
    await node.runtime.wires.take(WireWait(ask, now_s), claims(ticket_id="other"))
    try:
        yield
    finally:
        node.runtime.wires.give_back("other")


@asynccontextmanager
async def offered(cluster: Cluster, ticket: SignedTicket, ticket_id: str) -> AsyncIterator[Duplex]:
    """A source of the test's own that waits for its grant."""
    stream = Duplex(cluster.nodes["b"].stub.Land())
    offer = Offer(
        ticket=ticket,
        reservation_id=ticket_id,
        session_id="session-1",
        epoch=4,
        layout=LAYOUT,
        shape=Shape(Verification.PIPELINED, MEBIBYTE, 4),
        worker_address=cluster.nodes["a"].runtime.transport.address,
    )
    try:
        await stream.write(mover_pb2.LandRequest(offer=offer_to_proto(offer)))
        await until(lambda: waiting(cluster.nodes["b"]) == 1)
        yield stream
    finally:
        await stream.close()


def waiting(node: Node) -> int:
    return node.runtime.census()["wires_waiting"]


async def check_nothing_left(cluster: Cluster, slot: Any) -> None:
    node = cluster.nodes["b"]
    await node.until_free(slot)
    await node.until_quiet()
    census = node.runtime.census()
    assert [census[name] for name in ("wires_waiting", "reservations", "landings")] == [0, 0, 0]


async def begin(cluster: Cluster, **changes: Any) -> tuple[SignedTicket, Any]:
    ticket = cluster.ticket(LAYOUT, **{"horizon_ms": HORIZON_MS, **changes})
    return ticket, await cluster.reserve(ticket, LAYOUT)


async def test_a_wait_is_not_bounded_by_the_validity_that_comes_before_it(
    memory_cluster: Cluster,
) -> None:
    cluster, runtime = memory_cluster, memory_cluster.nodes["b"].runtime
    ticket, reserved = await begin(cluster, valid_for_ms=5_000, move_ms=1_000.0)
    reservation = runtime.reservations.get(reserved.reservation_id)
    asked_s = runtime.now()
    # The source may have asked in the last moment, and its egress may be busy.
    assert runtime.reservations.due(asked_s + 60.0) == ()
    assert runtime.reservations.due(asked_s + 65.0) == (reservation,)
    async with (
        busy(cluster.nodes["b"], WireDirection.INTO),
        offered(cluster, ticket, reserved.reservation_id),
    ):
        assert reservation.state is ReservationState.WAITING
        assert runtime.reservations.due(asked_s + 59.0) == ()
        assert runtime.reservations.due(runtime.now() + 61.0) == (reservation,)
    await check_nothing_left(cluster, reserved.slot)


async def test_the_grant_starts_the_lease(memory_cluster: Cluster) -> None:
    cluster, runtime = memory_cluster, memory_cluster.nodes["b"].runtime
    ticket, reserved = await begin(cluster, lease_ms=600_000)
    reservation = runtime.reservations.get(reserved.reservation_id)
    async with busy(cluster.nodes["b"], WireDirection.INTO):
        waits = offered(cluster, ticket, reserved.reservation_id)
        stream = await waits.__aenter__()
    answer = await stream.read()
    assert answer is not None
    assert answer.WhichOneof("event") == "grant"
    assert reservation.state is ReservationState.GRANTED
    assert 500.0 < reservation.deadline - runtime.now() <= 600.0
    (wire,) = runtime.wires.listing()
    assert wire.held
    assert 500.0 < (wire.remaining_s or 0) <= 600.0
    await waits.__aexit__(None, None, None)
    await check_nothing_left(cluster, reserved.slot)


async def test_a_word_after_the_offer(memory_cluster: Cluster) -> None:
    ticket, reserved = await begin(memory_cluster)
    async with (
        busy(memory_cluster.nodes["b"], WireDirection.INTO),
        offered(memory_cluster, ticket, reserved.reservation_id) as stream,
    ):
        await stream.write(mover_pb2.LandRequest())
        with pytest.raises(InvalidInput) as caught:
            await stream.read()
        assert caught.value.field == "event"
        await check_nothing_left(memory_cluster, reserved.slot)


async def test_a_source_that_has_nothing_more_to_say_is_withdrawn(memory_cluster: Cluster) -> None:
    ticket, reserved = await begin(memory_cluster)
    async with (
        busy(memory_cluster.nodes["b"], WireDirection.INTO),
        offered(memory_cluster, ticket, reserved.reservation_id) as stream,
    ):
        await stream.done_writing()
        with pytest.raises((TransferFailed, Unavailable)):
            await stream.read()
        await check_nothing_left(memory_cluster, reserved.slot)


async def test_a_slot_that_is_released_while_its_move_waits(memory_cluster: Cluster) -> None:
    ticket, reserved = await begin(memory_cluster)
    async with (
        busy(memory_cluster.nodes["b"], WireDirection.INTO),
        offered(memory_cluster, ticket, reserved.reservation_id) as stream,
    ):
        assert await memory_cluster.release("b", reserved.slot)
        with pytest.raises(TicketRefused) as caught:
            await stream.read()
        assert caught.value.reason == "SLOT_RELEASED"
        await check_nothing_left(memory_cluster, reserved.slot)


async def test_a_mover_that_stops_while_moves_wait(memory_cluster: Cluster) -> None:
    ticket, reserved = await begin(memory_cluster)
    node = memory_cluster.nodes["b"]
    async with (
        busy(node, WireDirection.INTO),
        offered(memory_cluster, ticket, reserved.reservation_id) as stream,
        asyncio.timeout(SLACK_S),
    ):
        await node.server.stop(0)
        with pytest.raises(WorldlineError):
            await stream.read()
        await until(lambda: waiting(node) == 0)


async def test_a_refused_wait_says_why_and_when_to_ask_again(memory_cluster: Cluster) -> None:
    """Nothing is armed, so nothing freezes."""
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    for name, direction in (("a", WireDirection.OUT_OF), ("b", WireDirection.INTO)):
        ticket, reserved = await begin(cluster, horizon_ms=100.0, move_ms=10.0)
        manifest = cluster.manifest(LAYOUT)
        order = cluster.order(ticket, manifest, reserved.reservation_id, slot)
        push = PushCall(cluster.nodes["a"].stub, order, SLACK_S)
        async with busy(cluster.nodes[name], direction):
            with pytest.raises(CapacityExhausted) as caught:
                await push.arm()
            await push.close()
            assert caught.value.reason == "WIRE_TOO_LATE"
            assert caught.value.field == "ticket.horizon_ms"
            assert (caught.value.retry_after_ms or 0) >= 1
        await cluster.nodes["a"].until_quiet()
        assert cluster.nodes["a"].runtime.wires.listing() == ()
        assert cluster.nodes["a"].runtime.slots.states()[slot.slot_index].pins == 0
        await cluster.release("b", reserved.slot)
        await check_nothing_left(cluster, reserved.slot)


@pytest.mark.parametrize("side", ["a", "b"])
async def test_a_wire_is_not_free_before_the_transport_is_done(
    build: Callable[..., Any], side: str
) -> None:
    """Bytes of a failed move may still be on it."""
    transports = {
        "a": FaultyTransport(MemoryTransport(), stop_after(3)),
        "b": FaultyTransport(MemoryTransport()),
    }
    cluster = await build(transports["a"], transports["b"])
    slot = await cluster.live_slot(LAYOUT)
    ticket, reserved = await begin(cluster, lease_ms=300)
    transports[side].terminal_allowed.clear()
    with pytest.raises(WorldlineError):
        await cluster.push(ticket, cluster.manifest(LAYOUT), reserved.reservation_id, slot)
    other, runtime = {"a": "b", "b": "a"}[side], cluster.nodes[side].runtime
    await until(lambda: cluster.nodes[other].runtime.wires.listing() == (), SLACK_S)
    await until(lambda: len(runtime.cleaners) > 0, SLACK_S)
    (kept,) = runtime.wires.listing()
    assert kept.held
    transports[side].terminal_allowed.set()
    await until(lambda: runtime.wires.listing() == (), SLACK_S)
