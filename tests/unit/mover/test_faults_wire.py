"""Faults on the wire: messages that are lost, cut or changed.

Each ends in bounded time with a typed error or with a verified state, never with anything else;
afterwards both slots serve the next move, and nothing of this one is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from services.mover import pushing as pushing_module
from services.mover.chunking import CHUNK_INDEX_BITS
from services.mover.go import GO_INDEX, GoFormat
from services.mover.landing import Landing
from services.mover.offer import Frozen
from services.mover.pushing import Push
from services.mover.seal import ANSWER_INDEX, SEAL_INDEX, Seal, pack_seal, unpack_seal
from services.mover.slots import SlotRole
from services.mover.transport.base import Buffer, Request
from tests.unit.mover.faulty import FaultyEndpoint
from tests.unit.mover.spoiled_wire import (
    LANDED_S,
    LAYOUT,
    LEASE_S,
    LONG_LEASE_S,
    Wire,
    instead_of,
    within,
)
from worldline.errors import (
    DeadlineExceeded,
    InvalidInput,
    TransferFailed,
    WorldlineError,
)
from worldline.rpc.push import PushCall
from worldline.state.layout import Layout, flat_layout
from worldline.state.segment_digests import SegmentDigests

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
