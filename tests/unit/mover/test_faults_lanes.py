"""Lanes: what carries the bytes is said, and what cannot carry them is refused (faults 32, 33)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.mover.transport import neighbours
from services.mover.transport.ucx import UcxTransport
from services.mover.transport.ucxendpoint import IN_PLACE
from tests.unit.mover.cluster import layout_of
from worldline.errors import TransferFailed, Unavailable
from worldline.rpc.push import PushCall
from worldline.ticket import MovePurpose

LAYOUT = layout_of()
REFUSED_S = 60.0


@pytest.mark.parametrize(
    "lanes", ["", "nonsense", "self", "cma", "sysv", "cuda_copy,cuda_ipc", "gdr_copy", "^tcp,sm"]
)
async def test_lanes_that_carry_nothing_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, lanes: str
) -> None:
    """Fault 33, in the transport itself: the process around it is in `test_service`."""
    monkeypatch.setenv("UCX_TLS", lanes)
    monkeypatch.setenv("UCX_LOG_LEVEL", "fatal")
    transport = UcxTransport()
    async with asyncio.timeout(REFUSED_S):
        with pytest.raises(Unavailable) as caught:
            await transport.start()
    assert (caught.value.reason, caught.value.field) == ("TRANSPORT_UNUSABLE", "UCX_TLS")
    assert f"UCX_TLS={lanes} " in caught.value.message


@pytest.mark.parametrize(
    ("lanes", "wanted"),
    [
        (None, (IN_PLACE, "posix/memory")),
        ("tcp,self", ("tcp/lo",)),
        ("posix,self", ("posix/memory",)),
        ("posix,cma,self", ("cma/memory", "posix/memory")),
    ],
)
async def test_a_push_says_what_carried_it(
    build: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    lanes: str | None,
    wanted: tuple[str, ...],
) -> None:
    """Fault 32: two movers of one host on TCP move the right bytes, slowly; nobody need guess."""
    if lanes is not None:
        monkeypatch.setenv("UCX_TLS", lanes)
    cluster = await build(UcxTransport(), UcxTransport())
    slot = await cluster.live_slot(LAYOUT)
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    manifest, name = cluster.manifest(LAYOUT), reserved.reservation_id
    outcome, _ = await cluster.push(ticket, manifest, name, slot)
    stats = outcome.push_stats
    assert tuple(stats.lanes) == wanted
    assert stats.wire_bytes == LAYOUT.extent_bytes
    assert 0 < stats.wire_ms <= stats.total_ms
    assert (
        cluster.view("b", reserved.slot)[: LAYOUT.extent_bytes]
        == (cluster.view("a", slot)[: LAYOUT.extent_bytes])
    )


async def test_bytes_that_could_not_be_read_in_place_are_not_said_to_be(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 32: a host that lets nobody map, and a probe, whose bytes rest in no slot."""
    cluster = await build(UcxTransport(), UcxTransport())
    slot = await cluster.live_slot(LAYOUT)

    async def lanes(purpose: MovePurpose = MovePurpose.SESSION) -> tuple[str, ...]:
        ticket = cluster.ticket(LAYOUT, purpose=purpose)
        name = (reserved := await cluster.reserve(ticket, LAYOUT)).reservation_id
        source = slot if purpose is MovePurpose.SESSION else None
        outcome, _ = await cluster.push(ticket, cluster.manifest(LAYOUT), name, source)
        assert outcome.digests == outcome.receipt.digests
        assert await cluster.release("b", reserved.slot)
        await cluster.nodes["a"].until_quiet()
        return tuple(outcome.push_stats.lanes)

    assert await lanes() == (IN_PLACE, "posix/memory")
    assert await lanes(MovePurpose.PROBE) == ("posix/memory",)
    assert await lanes() == (IN_PLACE, "posix/memory"), "the same endpoint, the next transfer"
    for node in cluster.nodes.values():
        for endpoint in list(node.runtime.transport._parked):
            await endpoint.abort()
    monkeypatch.setattr(neighbours, "_open", lambda pid, file: None)
    assert await lanes() == ("posix/memory",)


async def test_ends_that_differ_in_lanes_meet_on_those_of_both(
    build: Callable[..., Any],
) -> None:
    """One of them may not be read in place: the other must not wait for it to be."""
    cluster = await build(UcxTransport({"TLS": "tcp,self"}), UcxTransport())
    slot = await cluster.live_slot(LAYOUT)
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    manifest, name = cluster.manifest(LAYOUT), reserved.reservation_id
    outcome, _ = await cluster.push(ticket, manifest, name, slot)
    assert outcome.digests == outcome.receipt.digests
    assert all(lane.startswith("tcp/") for lane in outcome.push_stats.lanes)


async def test_ends_without_a_lane_in_common_are_refused_before_the_go(
    build: Callable[..., Any],
) -> None:
    cluster = await build(UcxTransport({"TLS": "tcp,self"}), UcxTransport({"TLS": "posix,self"}))
    slot = await cluster.live_slot(LAYOUT)
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    manifest, name = cluster.manifest(LAYOUT), reserved.reservation_id
    order = cluster.order(ticket, manifest, name, slot)
    push = PushCall(cluster.nodes["a"].stub, order, 60)
    async with asyncio.timeout(60):
        with pytest.raises(TransferFailed) as caught:
            await push.arm()
    await push.close()
    assert caught.value.field == "worker_address"
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert await cluster.release("a", slot)
