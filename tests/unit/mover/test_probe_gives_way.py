"""A probe in the last slot: wherever it stands, a session that needs the slot has it (I8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from services.mover.membership import Membership
from services.mover.reservation import ReservationState
from services.mover.slots import SlotRole, ref_from_proto
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import MEBIBYTE, Cluster, layout_of, until
from tests.unit.mover.faulty import FaultyTransport, stop_after
from worldline.errors import CapacityExhausted, TicketRefused
from worldline.rpc.channel import call
from worldline.rpc.push import PushCall
from worldline.state.layout import flat_layout
from worldline.ticket import MovePurpose, SignedTicket
from worldline.v1 import move_pb2, mover_pb2, placement_pb2

FACTORIES = {"memory": MemoryTransport, "ucx": UcxTransport}
LAYOUT = flat_layout("probe", 9 * MEBIBYTE + 1)
PROBE = "probe-1"


def probe_ticket(cluster: Cluster) -> SignedTicket:
    return cluster.ticket(LAYOUT, purpose=MovePurpose.PROBE, session_id=PROBE, epoch=1)


def probe_push(cluster: Cluster, ticket: SignedTicket, reservation_id: str) -> PushCall:
    order = cluster.order(
        ticket,
        cluster.manifest(LAYOUT, session_id=PROBE, epoch=1),
        reservation_id,
        None,
        verification="VERIFICATION_OFF",
        chunk_bytes=MEBIBYTE,
        window_chunks=4,
    )
    return PushCall(cluster.nodes["a"].stub, order, 100.0)


def allocate(cluster: Cluster, session_id: str = "next") -> asyncio.Task[move_pb2.SlotRef]:
    """Ask `b` for a LIVE slot."""

    async def ask() -> move_pb2.SlotRef:
        request = mover_pb2.AllocateRequest(session_id=session_id, extent_bytes=LAYOUT.extent_bytes)
        answer = await call(cluster.nodes["b"].stub.Allocate, request, timeout_s=60)
        slot: move_pb2.SlotRef = answer.slot
        return slot

    return asyncio.create_task(ask())


async def check_nothing_left(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        await node.until_quiet()
        census = node.runtime.census()
        for name in ("landings", "reservations", "wires_held", "wires_waiting", "slots_waited_for"):
            assert census[name] == 0, (name, census)
        assert census["endpoints"] == census["requests_outstanding"] == 0


@pytest.mark.parametrize("kind", sorted(FACTORIES))
async def test_in_the_middle_of_its_bytes(build: Callable[..., Any], kind: str) -> None:
    """The slot is quarantined until the transport is done, and then the session's: zeros."""
    target = FaultyTransport(FACTORIES[kind]())
    cluster = await build(FaultyTransport(FACTORIES[kind](), stop_after(3)), target, slot_count=1)
    node = cluster.nodes["b"]
    ticket = probe_ticket(cluster)
    reserved = await cluster.reserve(ticket, LAYOUT)
    push = probe_push(cluster, ticket, reserved.reservation_id)
    await push.arm()
    await push.go(0, LAYOUT)
    reservations = node.runtime.reservations
    await until(lambda: reservations.get(reserved.reservation_id).state is ReservationState.LANDING)
    target.terminal_allowed.clear()
    asked = allocate(cluster)
    await until(lambda: node.role(reserved.slot) is SlotRole.QUARANTINED)
    with pytest.raises(CapacityExhausted) as caught:
        await push.outcome()
    assert caught.value.reason == "PROBE_GAVE_WAY"
    assert not asked.done()
    assert node.role(reserved.slot) is SlotRole.QUARANTINED
    target.terminal_allowed.set()
    slot = await asked
    assert (slot.slot_index, slot.generation) == (0, reserved.slot.generation + 1)
    assert node.role(slot) is SlotRole.LIVE
    assert not any(cluster.view("b", slot)[: LAYOUT.extent_bytes])
    await push.close()
    # The probe gives back what it knows: nothing of its successor.
    assert not await cluster.release("b", reserved.slot, PROBE)
    assert node.role(slot) is SlotRole.LIVE
    await check_nothing_left(cluster)


async def test_before_its_source_has_offered(build: Callable[..., Any]) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=1)
    ticket = probe_ticket(cluster)
    reserved = await cluster.reserve(ticket, LAYOUT)
    slot = await allocate(cluster)
    assert slot.generation == reserved.slot.generation + 1
    push = probe_push(cluster, ticket, reserved.reservation_id)
    with pytest.raises(CapacityExhausted) as caught:
        await push.arm()
    assert caught.value.reason == "PROBE_GAVE_WAY"
    await push.close()
    await check_nothing_left(cluster)


async def test_while_it_waits_for_its_go(build: Callable[..., Any]) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=1)
    ticket = probe_ticket(cluster)
    reserved = await cluster.reserve(ticket, LAYOUT)
    push = probe_push(cluster, ticket, reserved.reservation_id)
    await push.arm()
    assert (await allocate(cluster)).generation == reserved.slot.generation + 1
    with pytest.raises(CapacityExhausted) as caught:
        await push.outcome()
    assert caught.value.reason == "PROBE_GAVE_WAY"
    await push.close()
    await check_nothing_left(cluster)


async def test_while_its_slot_is_made_ready(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=1)
    runtime = cluster.nodes["b"].runtime
    register, ready = runtime._register, asyncio.Event()

    async def slow(index: int) -> None:
        await ready.wait()
        await register(index)

    monkeypatch.setattr(runtime, "_register", slow)
    reserving = asyncio.create_task(cluster.reserve(probe_ticket(cluster), LAYOUT))
    await until(lambda: bool(runtime.reservations.ids()))
    asked = allocate(cluster)
    await until(lambda: runtime.slots.states()[0].role is SlotRole.QUARANTINED)
    ready.set()
    with pytest.raises(CapacityExhausted) as caught:
        await reserving
    assert caught.value.reason == "PROBE_GAVE_WAY"
    assert (await asked).generation == runtime.slots.states()[0].ref.generation
    await check_nothing_left(cluster)


async def test_after_it_has_measured(build: Callable[..., Any]) -> None:
    """Its figures stand; only the slot is not its own any more."""
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=1)
    ticket = probe_ticket(cluster)
    reserved = await cluster.reserve(ticket, LAYOUT)
    push = probe_push(cluster, ticket, reserved.reservation_id)
    await push.arm()
    await push.go(0, LAYOUT)
    assert (await push.outcome()).push_stats.wire_bytes == LAYOUT.extent_bytes
    await push.close()
    slot = await allocate(cluster)
    assert not await cluster.release("b", reserved.slot, PROBE)
    assert cluster.nodes["b"].role(slot) is SlotRole.LIVE


async def test_a_move_that_reserves_has_it_and_another_probe_does_not(
    build: Callable[..., Any],
) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=1)
    first = await cluster.reserve(probe_ticket(cluster), LAYOUT)
    with pytest.raises(CapacityExhausted) as caught:
        await cluster.reserve(probe_ticket(cluster), LAYOUT)
    assert caught.value.reason == "NO_FREE_SLOT"
    layout = layout_of()
    slot, ticket = await cluster.live_slot(layout), cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    assert reserved.slot.generation == first.slot.generation + 1
    outcome, _ = await cluster.push(
        ticket, cluster.manifest(layout), reserved.reservation_id, slot, promote=True
    )
    assert outcome.digests == outcome.receipt.digests


async def test_a_ticket_that_is_used_twice_at_once_takes_one_slot(
    build: Callable[..., Any],
) -> None:
    """Two calls wait for a slot with the same ticket: one has it, the other's is free again."""
    target = FaultyTransport(MemoryTransport())
    cluster = await build(FaultyTransport(MemoryTransport(), stop_after(3)), target, slot_count=2)
    node = cluster.nodes["b"]
    probing = []
    for _ in range(2):
        ticket = probe_ticket(cluster)
        probing.append(await cluster.reserve(ticket, LAYOUT))
    for one in probing:
        node.runtime.slots.pin(ref_from_proto(one.slot, "slot"))
    ticket, layout = cluster.ticket(layout_of()), layout_of()
    asked = [asyncio.create_task(cluster.reserve(ticket, layout)) for _ in range(2)]
    await until(lambda: len(node.runtime.queue) == 2)
    for one in probing:
        node.runtime.slots.unpin(ref_from_proto(one.slot, "slot"), node.runtime.now())
    answers = await asyncio.gather(*asked, return_exceptions=True)
    (refused,) = [one for one in answers if isinstance(one, BaseException)]
    assert isinstance(refused, TicketRefused)
    assert refused.reason == "TICKET_USED"
    roles = sorted(state.role for state in node.runtime.slots.states())
    assert roles == [SlotRole.FREE, SlotRole.SHADOW]


async def test_a_probe_that_is_never_quiet_is_waited_for_so_long(
    build: Callable[..., Any],
) -> None:
    target = FaultyTransport(MemoryTransport())
    cluster = await build(
        FaultyTransport(MemoryTransport(), stop_after(3)),
        target,
        slot_count=1,
        probe_gives_way_within_s=0.05,
    )
    ticket = probe_ticket(cluster)
    reserved = await cluster.reserve(ticket, LAYOUT)
    push = probe_push(cluster, ticket, reserved.reservation_id)
    await push.arm()
    target.terminal_allowed.clear()
    with pytest.raises(CapacityExhausted) as caught:
        await allocate(cluster)
    assert caught.value.reason == "NO_FREE_SLOT"
    assert "a probe" in caught.value.message
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.QUARANTINED
    target.terminal_allowed.set()
    await push.close()
    await cluster.nodes["b"].until_free(reserved.slot)


async def test_a_node_says_which_of_its_slots_give_way(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has ended and is not quiet in time does not any more."""
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=3)
    runtime, renewed = cluster.nodes["b"].runtime, []

    async def renew(request: placement_pb2.RenewNodeRequest, **_: Any) -> Any:
        renewed.append({one.session_id: one.gives_way for one in request.slots})
        return placement_pb2.RenewNodeResponse(lease_ms=3000)

    membership = Membership(runtime, "127.0.0.1:1")
    monkeypatch.setattr(membership, "_stub", lambda: SimpleNamespace(RenewNode=renew))
    reserved = await cluster.reserve(probe_ticket(cluster), LAYOUT)
    slot = ref_from_proto(reserved.slot, "slot")
    await allocate(cluster, "s")
    await membership._renew()
    runtime.slots.pin(slot)
    runtime.release(slot, PROBE)
    await membership._renew()
    with cluster.nodes["b"].later(runtime.settings.probe_gives_way_within_s):
        await membership._renew()
    assert renewed == [{PROBE: True, "s": False}] * 2 + [{PROBE: False, "s": False}]
    runtime.slots.unpin(slot, runtime.now())
