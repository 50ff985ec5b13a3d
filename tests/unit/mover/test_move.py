"""A push between two movers over gRPC and each transport: what lands, and what must not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.mover.reservation import ReservationState
from services.mover.slots import SlotRole
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import LEAF_BYTES, MEBIBYTE, Cluster, layout_of, until
from tests.unit.mover.faulty import FaultyTransport, flip_bit, stop_after
from worldline.errors import (
    Conflict,
    DeadlineExceeded,
    IntegrityError,
    TransferFailed,
    WorldlineError,
)
from worldline.rpc.channel import call
from worldline.rpc.push import PushCall
from worldline.state.codec import digests_from_proto, digests_to_proto
from worldline.state.digest import digest_slot
from worldline.state.layout import flat_layout
from worldline.ticket import MovePurpose
from worldline.v1 import mover_pb2

FACTORIES = {"memory": MemoryTransport, "ucx": UcxTransport}


async def test_a_state_moves_and_is_promoted(cluster: Cluster) -> None:
    layout = layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.SHADOW
    outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot)
    extent = layout.extent_bytes
    source = bytes(cluster.view("a", slot)[:extent])
    assert bytes(cluster.view("b", reserved.slot)[:extent]) == source
    assert outcome.digests == outcome.receipt.digests
    assert digests_from_proto(outcome.digests, layout) == digest_slot(layout, memoryview(source))
    assert outcome.receipt.slot == reserved.slot
    assert outcome.receipt.received_bytes == extent
    stats = outcome.push_stats
    assert (stats.wire_bytes, stats.chunks, stats.chunk_bytes) == (extent, 11, MEBIBYTE)
    assert stats.wire_ms > 0
    assert list(stats.lanes)
    verified = await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
    assert verified.equal
    await cluster.promote(reserved.reservation_id, reserved.slot)
    await cluster.promote(reserved.reservation_id, reserved.slot)  # a repeated call is no error
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.LIVE
    for node in cluster.nodes.values():
        await node.until_quiet()
        census = node.runtime.census()
        assert census["endpoints"] == census["requests_outstanding"] == census["landings"] == 0
        assert all(state.pins == 0 for state in node.runtime.slots.states())


async def test_two_moves_share_a_parked_endpoint(cluster: Cluster) -> None:
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    for _ in range(3):
        ticket = cluster.ticket(layout)
        reserved = await cluster.reserve(ticket, layout)
        await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
        assert await cluster.release("b", reserved.slot)
        for node in cluster.nodes.values():
            await node.until_quiet()
            assert node.runtime.census()["endpoints_parked"] == 1
        assert cluster.nodes["b"].role(reserved.slot) is SlotRole.FREE


@pytest.mark.parametrize("kind", sorted(FACTORIES))
@pytest.mark.parametrize(
    ("chunk", "byte", "leaf", "granule"),
    [(0, 0, "leaf0", 0), (6, 77, "leaf1", 6), (10, 200, "leaf2", 10)],
)
async def test_a_bit_flipped_in_flight_names_leaf_and_granule(
    build: Callable[..., Any], kind: str, chunk: int, byte: int, leaf: str, granule: int
) -> None:
    factory = FACTORIES[kind]
    cluster = await build(FaultyTransport(factory(), flip_bit(chunk, byte)), factory())
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    with pytest.raises(IntegrityError) as caught:
        await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert (caught.value.leaf, caught.value.granule) == (leaf, granule)
    with pytest.raises(Conflict):
        await cluster.promote(reserved.reservation_id, reserved.slot)
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


async def test_a_bit_flipped_in_the_shadow_slot_is_found_by_verify(
    memory_cluster: Cluster,
) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot)
    view = cluster.view("b", reserved.slot)
    view[5 * MEBIBYTE] ^= 0x80
    answer = await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
    assert not answer.equal
    assert (answer.failure.leaf, answer.failure.granule) == ("leaf1", 5)
    with pytest.raises(Conflict) as caught:
        await cluster.promote(reserved.reservation_id, reserved.slot)
    assert caught.value.reason == "NOT_VERIFIED"
    view[5 * MEBIBYTE] ^= 0x80
    assert (await cluster.verify(reserved.reservation_id, manifest, outcome.digests)).equal
    view[0] ^= 1  # a later read-back takes the verdict back
    assert not (await cluster.verify(reserved.reservation_id, manifest, outcome.digests)).equal
    with pytest.raises(Conflict):
        await cluster.promote(reserved.reservation_id, reserved.slot)


async def test_another_scalar_is_another_state(memory_cluster: Cluster) -> None:
    """Fault 7: equal bytes under another meaning are not equal."""
    cluster, layout = memory_cluster, layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    other = cluster.manifest(layout.with_scalars({"step": 4}))
    assert not (await cluster.verify(reserved.reservation_id, other, outcome.digests)).equal


@pytest.mark.parametrize("kind", sorted(FACTORIES))
async def test_a_source_that_stops_sending_ends_at_the_lease(
    build: Callable[..., Any], kind: str
) -> None:
    """Faults 9 and 11: alive but stuck; nothing may be promoted later."""
    factory = FACTORIES[kind]
    cluster = await build(FaultyTransport(factory(), stop_after(3)), factory())
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout, lease_ms=300)
    reserved = await cluster.reserve(ticket, layout)
    with pytest.raises(DeadlineExceeded) as caught:
        await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert caught.value.reason == "LEASE_EXPIRED"
    await cluster.nodes["b"].until_free(reserved.slot)
    with pytest.raises(Conflict) as late:
        await cluster.promote(reserved.reservation_id, reserved.slot)
    assert late.value.reason == "RESERVATION_ENDED"
    await cluster.nodes["a"].until_quiet()
    assert await cluster.release("a", slot)
    for node in cluster.nodes.values():
        census = node.runtime.census()
        assert census["endpoints"] == census["requests_outstanding"] == 0


@pytest.mark.parametrize("side", ["a", "b"])
async def test_a_slot_is_quarantined_until_the_transport_is_done(
    build: Callable[..., Any], side: str
) -> None:
    """Fault 4 and I8: an aborted transfer's late write never reaches the next tenant."""
    transports = {
        "a": FaultyTransport(MemoryTransport(), stop_after(3)),
        "b": FaultyTransport(MemoryTransport()),
    }
    cluster = await build(transports["a"], transports["b"], slot_count=1)
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout, lease_ms=300)
    reserved = await cluster.reserve(ticket, layout)
    transports[side].terminal_allowed.clear()
    with pytest.raises(WorldlineError):
        await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    node, held = cluster.nodes[side], {"a": slot, "b": reserved.slot}[side]
    await cluster.release(side, held)
    await until(lambda: node.role(held) is SlotRole.QUARANTINED)
    with pytest.raises(WorldlineError) as caught:
        await call(
            node.stub.Allocate,
            mover_pb2.AllocateRequest(session_id="next", extent_bytes=10),
            timeout_s=60,
        )
    assert caught.value.reason == "NO_FREE_SLOT"
    with pytest.raises(WorldlineError):
        await call(
            node.stub.MapSlot,
            mover_pb2.MapSlotRequest(slot=held, session_id="session-1"),
            timeout_s=60,
        )
    transports[side].terminal_allowed.set()
    await node.until_free(held)
    fresh = await call(
        node.stub.Allocate,
        mover_pb2.AllocateRequest(session_id="next", extent_bytes=layout.extent_bytes),
        timeout_s=60,
    )
    assert fresh.slot.generation == held.generation + 1
    assert not any(cluster.view(side, fresh.slot)[: layout.extent_bytes])


@pytest.mark.parametrize("kind", sorted(FACTORIES))
async def test_a_cancelled_push_leaves_nothing(build: Callable[..., Any], kind: str) -> None:
    factory = FACTORIES[kind]
    cluster = await build(FaultyTransport(factory(), stop_after(4)), factory())
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    pushing = asyncio.ensure_future(
        cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    )
    await until(lambda: bool(cluster.nodes["b"].runtime.landings))
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    await cluster.nodes["b"].until_free(reserved.slot)
    for node in cluster.nodes.values():
        await node.until_quiet()
        census = node.runtime.census()
        assert census["endpoints"] == census["requests_outstanding"] == census["landings"] == 0
        assert all(state.pins == 0 for state in node.runtime.slots.states())
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


def landed_bytes(cluster: Cluster) -> int:
    transfers = [landing._transfer for landing in cluster.nodes["b"].runtime.landings.values()]
    return sum(transfer.moved_bytes for transfer in transfers if transfer is not None)


@pytest.mark.parametrize("kind", sorted(FACTORIES))
async def test_releasing_the_target_slot_ends_the_push(
    build: Callable[..., Any], kind: str
) -> None:
    factory = FACTORIES[kind]
    cluster = await build(FaultyTransport(factory(), stop_after(4)), factory())
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    pushing = asyncio.ensure_future(
        cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    )
    await until(lambda: landed_bytes(cluster) > 0)
    assert await cluster.release("b", reserved.slot)
    with pytest.raises(WorldlineError) as caught:
        await pushing
    assert caught.value.reason == "SLOT_RELEASED"
    await cluster.nodes["b"].until_free(reserved.slot)


async def test_a_target_that_dies_fails_the_push(build: Callable[..., Any]) -> None:
    cluster = await build(FaultyTransport(MemoryTransport(), stop_after(4)), MemoryTransport())
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    pushing = asyncio.ensure_future(
        cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    )
    reservations = cluster.nodes["b"].runtime.reservations
    await until(lambda: reservations.get(reserved.reservation_id).state is ReservationState.LANDING)
    await cluster.nodes["b"].server.stop(0)
    with pytest.raises(TransferFailed):
        await pushing
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


async def test_probe_moves_random_bytes_and_is_never_promoted(cluster: Cluster) -> None:
    layout = flat_layout("probe", 9 * MEBIBYTE + 1)
    ticket = cluster.ticket(layout, purpose=MovePurpose.PROBE, session_id="probe-1", epoch=0)
    manifest = cluster.manifest(layout, session_id="probe-1", epoch=0)
    reserved = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(
        ticket, manifest, reserved.reservation_id, None, verification="VERIFICATION_OFF"
    )
    assert not outcome.HasField("digests")
    assert outcome.push_stats.wire_bytes == layout.extent_bytes
    landed = bytes(cluster.view("b", reserved.slot)[: layout.extent_bytes])
    assert len(set(landed[:4096])) > 200
    assert len({landed[start : start + 4096] for start in range(0, len(landed), 4096)}) == 2305
    for attempt in (
        cluster.verify(reserved.reservation_id, manifest, None),
        cluster.promote(reserved.reservation_id, reserved.slot),
    ):
        with pytest.raises(Conflict) as caught:
            await attempt
        assert caught.value.reason == "NOT_PROMOTABLE"
    assert await cluster.release("b", reserved.slot, "probe-1")
    await cluster.nodes["a"].until_quiet()
    gc.collect()
    assert not _held("worldline-probe")


def _held(name: str) -> list[str]:
    """Descriptors and mappings of this process whose memory file has that name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them is gone
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    found += Path("/proc/self/maps").read_text().splitlines()
    return [line for line in found if name in line]


@pytest.mark.parametrize("preparing", [False, True])
async def test_a_push_is_armed_for_a_reservation_that_is_still_to_come(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, preparing: bool
) -> None:
    """Before the mover has heard of it, and while its memory is made ready."""
    cluster, layout = memory_cluster, layout_of()
    runtime = cluster.nodes["b"].runtime
    slot = await cluster.live_slot(layout)
    claims = cluster.claims(layout)
    ticket, manifest = cluster.sign(claims), cluster.manifest(layout)
    ready, prepare = asyncio.Event(), runtime._prepare

    async def prepare_when_told(*args: Any, **kwargs: Any) -> None:
        await ready.wait()
        await prepare(*args, **kwargs)

    monkeypatch.setattr(runtime, "_prepare", prepare_when_told)
    reserving = asyncio.ensure_future(cluster.reserve(ticket, layout)) if preparing else None
    if preparing:
        await until(lambda: bool(runtime.reservations.ids()))
    pushing = asyncio.ensure_future(cluster.push(ticket, manifest, claims.ticket_id, slot))
    await until(lambda: len(runtime.reserving) == 1)
    assert not runtime.landings
    ready.set()
    reserved = await (reserving or cluster.reserve(ticket, layout))
    outcome, _ = await pushing
    assert reserved.reservation_id == claims.ticket_id
    assert outcome.receipt.slot == reserved.slot
    assert not len(runtime.reserving)


async def test_a_push_that_waits_for_a_reservation_learns_of_its_end(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, layout = memory_cluster, layout_of()
    runtime = cluster.nodes["b"].runtime
    slot = await cluster.live_slot(layout)
    claims = cluster.claims(layout)
    ticket = cluster.sign(claims)

    async def cannot(ref: Any, *args: Any, **kwargs: Any) -> None:
        await until(lambda: len(runtime.reserving) == 1)
        runtime.slots.release(ref, runtime.now())
        raise TransferFailed("no memory")

    monkeypatch.setattr(runtime, "_prepare", cannot)
    answers = await asyncio.gather(
        cluster.reserve(ticket, layout),
        cluster.push(ticket, cluster.manifest(layout), claims.ticket_id, slot),
        return_exceptions=True,
    )
    assert [one.reason for one in answers if isinstance(one, WorldlineError)] == [
        "TRANSFER_FAILED",
        "RESERVATION_ENDED",
    ]


@pytest.mark.parametrize("verification", ["PIPELINED", "SEQUENTIAL", "TAIL"])
async def test_every_placement_of_verification_gives_the_same_digests(
    cluster: Cluster, verification: str
) -> None:
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(
        ticket,
        cluster.manifest(layout),
        reserved.reservation_id,
        slot,
        verification=f"VERIFICATION_{verification}",
        chunk_bytes=4 * MEBIBYTE,
    )
    data = cluster.view("a", slot)[: layout.extent_bytes]
    assert outcome.digests == digests_to_proto(digest_slot(layout, data))
    assert outcome.receipt.digests == outcome.digests


async def test_a_go_that_never_comes_ends_with_the_lease(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout, lease_ms=400)
    reserved = await cluster.reserve(ticket, layout)
    order = cluster.order(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    push = PushCall(cluster.nodes["a"].stub, order, 60)
    with pytest.raises(WorldlineError) as caught:
        await push.arm()
        await push.outcome()
    assert caught.value.reason == "LEASE_EXPIRED"
    await push.close()
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


async def test_an_unused_reservation_is_reaped(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    reserved = await cluster.reserve(cluster.ticket(layout), layout)
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.SHADOW
    with cluster.nodes["b"].later(600.0):
        await cluster.nodes["b"].until_free(reserved.slot)
    assert cluster.nodes["b"].runtime.reservations.ids() == ()


@pytest.mark.parametrize("sizes", [(0,), (1,), (MEBIBYTE,), (MEBIBYTE + 1, 0, 5)])
async def test_odd_extents(memory_cluster: Cluster, sizes: tuple[int, ...]) -> None:
    cluster, layout = memory_cluster, layout_of(sizes)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout, extent_bytes_max=max(1, layout.extent_bytes))
    reserved = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert outcome.digests == outcome.receipt.digests


def test_the_layout_of_these_tests_is_awkward() -> None:
    assert sum(LEAF_BYTES) % MEBIBYTE
    assert any(sum(LEAF_BYTES[:index]) % MEBIBYTE for index in range(1, len(LEAF_BYTES)))
