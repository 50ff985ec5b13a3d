"""Ticket abuse: what a ticket does not say, a mover does not do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover import gate
from services.mover.slots import SlotRole
from services.mover.tickets import (
    Subject,
    TicketBook,
    Use,
    check_manifest,
    check_source,
    check_target,
)
from services.mover.transport.memory import MemoryTransport
from tests.unit.mover.cluster import MEBIBYTE, Cluster, layout_of
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
    TicketRefused,
    VersionSkew,
    WorldlineError,
)
from worldline.rpc.channel import mapped_errors
from worldline.state.codec import manifest_to_proto
from worldline.ticket import MovePurpose, SignedTicket, TicketClaims, TicketSigner, ticket_to_proto
from worldline.v1 import mover_pb2

LAYOUT = layout_of()
OTHER = layout_of((MEBIBYTE, 17))


def claims(**changes: Any) -> TicketClaims:
    values: dict[str, Any] = {
        "ticket_id": "t",
        "move_id": "m",
        "session_id": "s",
        "epoch": 3,
        "source_node_id": "a",
        "target_node_id": "b",
        "extent_bytes_max": 100,
        "topology_hash": b"hash",
        "purpose": MovePurpose.SESSION,
        "issued_at_ms": 0,
        "valid_for_ms": 1000,
        "lease_ms": 1000,
    }
    return TicketClaims(**{**values, **changes})


SUBJECT = Subject("s", b"hash", 100, 3)


def test_the_right_subject_passes() -> None:
    check_target(claims(), "b", SUBJECT)
    check_source(claims(), "a", SUBJECT)
    check_manifest(claims(), SUBJECT)
    check_target(claims(), "b", dataclasses.replace(SUBJECT, epoch=None))


@pytest.mark.parametrize(
    ("subject", "field"),
    [
        (dataclasses.replace(SUBJECT, session_id="x"), "ticket.session_id"),
        (dataclasses.replace(SUBJECT, topology_hash=b"x"), "ticket.topology_hash"),
        (dataclasses.replace(SUBJECT, epoch=4), "ticket.epoch"),
    ],
)
def test_another_subject_is_a_mismatch(subject: Subject, field: str) -> None:
    for check, node in ((check_target, "b"), (check_source, "a")):
        with pytest.raises(TicketRefused) as caught:
            check(claims(), node, subject)
        assert (caught.value.reason, caught.value.field) == ("TICKET_MISMATCH", field)
    with pytest.raises(InvalidInput) as refused:
        check_manifest(claims(), subject)
    assert refused.value.reason == "MANIFEST_MISMATCH"


def test_another_node_is_a_mismatch() -> None:
    with pytest.raises(TicketRefused) as caught:
        check_target(claims(), "a", SUBJECT)
    assert caught.value.field == "ticket.target_node_id"
    with pytest.raises(TicketRefused) as caught:
        check_source(claims(), "b", SUBJECT)
    assert caught.value.field == "ticket.source_node_id"


def test_more_bytes_than_the_ticket_allows() -> None:
    with pytest.raises(TicketRefused) as caught:
        check_target(claims(), "b", dataclasses.replace(SUBJECT, extent_bytes=101))
    assert caught.value.reason == "EXTENT_OVER_TICKET"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Use), st.floats(0, 10)), max_size=30))
def test_a_ticket_is_redeemed_once_per_use(redemptions: list[tuple[int, Use, float]]) -> None:
    book, seen = TicketBook(), set()
    for number, use, elapsed in redemptions:
        key = (number, use)
        if key in seen:
            with pytest.raises(TicketRefused) as caught:
                book.redeem(claims(ticket_id=f"t{number}"), use, 20.0, elapsed)
            assert caught.value.reason == "TICKET_USED"
        else:
            book.redeem(claims(ticket_id=f"t{number}"), use, 20.0, elapsed)
        seen.add(key)
    assert len(book) == len(seen)


def test_expired_tickets_are_forgotten() -> None:
    book = TicketBook()
    book.redeem(claims(), Use.PUSH, 1.0, 0.0)
    book.redeem(claims(ticket_id="later"), Use.PUSH, 200.0, 100.0)
    assert len(book) == 1


# --- over the wire -------------------------------------------------------------------------------


async def refused(awaitable: Any, kind: type[WorldlineError], reason: str) -> WorldlineError:
    with pytest.raises(kind) as caught:
        await awaitable
    assert caught.value.reason == reason, caught.value
    return caught.value


def forged(ticket: SignedTicket) -> SignedTicket:
    changed = bytearray(ticket.claims)
    changed[-1] ^= 1
    return dataclasses.replace(ticket, claims=bytes(changed))


async def test_reserve_refuses_what_the_ticket_does_not_say(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    old_ms = round(time.monotonic() * 1e3) - 60_000
    stranger = TicketSigner.generate().sign(cluster.claims(LAYOUT))
    cases: list[tuple[SignedTicket, Any, str]] = [
        (forged(cluster.ticket(LAYOUT)), LAYOUT, "TICKET_FORGED"),
        (cluster.ticket(LAYOUT, issued_at_ms=old_ms), LAYOUT, "TICKET_EXPIRED"),
        (stranger, LAYOUT, "TICKET_KEY_UNKNOWN"),
        (cluster.ticket(LAYOUT, target_node_id="c"), LAYOUT, "TICKET_MISMATCH"),
        (cluster.ticket(LAYOUT), OTHER, "TICKET_MISMATCH"),
        (cluster.ticket(LAYOUT, extent_bytes_max=5), LAYOUT, "EXTENT_OVER_TICKET"),
    ]
    for ticket, layout, reason in cases:
        await refused(cluster.reserve(ticket, layout), TicketRefused, reason)
    runtime = cluster.nodes["b"].runtime
    assert runtime.slots.free_count() == 2
    assert runtime.census()["tickets_remembered"] == 0
    used = cluster.ticket(LAYOUT)
    await cluster.reserve(used, LAYOUT)
    await refused(cluster.reserve(used, LAYOUT), TicketRefused, "TICKET_USED")
    assert runtime.slots.free_count() == 1


async def test_a_full_target_leaves_the_ticket_unused(build: Callable[..., Any]) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), slot_count=1)
    first = await cluster.reserve(cluster.ticket(LAYOUT), LAYOUT)
    ticket = cluster.ticket(LAYOUT)
    await refused(cluster.reserve(ticket, LAYOUT), CapacityExhausted, "NO_FREE_SLOT")
    assert await cluster.release("b", first.slot)
    await cluster.reserve(ticket, LAYOUT)


async def test_a_state_larger_than_a_slot(memory_cluster: Cluster) -> None:
    huge = layout_of((30 * MEBIBYTE,))
    ticket = memory_cluster.ticket(huge)
    await refused(memory_cluster.reserve(ticket, huge), CapacityExhausted, "STATE_TOO_LARGE")


async def test_admission_that_restarted_is_asked_again(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    await cluster.reserve(cluster.ticket(LAYOUT), LAYOUT)
    cluster.admission.signer = TicketSigner.generate()
    await cluster.reserve(cluster.ticket(LAYOUT), LAYOUT)
    assert cluster.admission.asked == 2


async def test_an_admission_that_kept_its_key_under_another_clock_is_asked_again(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host restarted: every ticket of it looks long expired to who learned the old clock."""
    cluster = memory_cluster
    await cluster.reserve(cluster.ticket(LAYOUT), LAYOUT)
    admission_ms = round(time.monotonic() * 1e3) // 2
    cluster.admission.clock_ms = admission_ms - round(time.monotonic() * 1e3)
    ticket = cluster.ticket(LAYOUT, issued_at_ms=admission_ms)
    await refused(cluster.reserve(ticket, LAYOUT), TicketRefused, "TICKET_EXPIRED")
    assert cluster.admission.asked == 1, "what was learned a moment ago is believed"
    monkeypatch.setattr(gate, "_BELIEVED_S", 0.0)
    await cluster.reserve(ticket, LAYOUT)
    assert cluster.admission.asked == 2


async def test_push_refuses_what_the_ticket_does_not_say(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    good = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(good, LAYOUT)
    here = (reserved.reservation_id, slot)
    manifest = cluster.manifest(LAYOUT)

    async def attempt(
        ticket: SignedTicket, changed: Any, kind: type[WorldlineError], reason: str
    ) -> None:
        await refused(cluster.push(ticket, changed, *here), kind, reason)

    await attempt(forged(good), manifest, TicketRefused, "TICKET_FORGED")
    await attempt(
        cluster.ticket(LAYOUT, source_node_id="c"), manifest, TicketRefused, "TICKET_MISMATCH"
    )
    for changes in ({"session_id": "session-2"}, {"epoch": 5}):
        other = cluster.manifest(LAYOUT, **changes)
        await attempt(good, other, InvalidInput, "MANIFEST_MISMATCH")
    await attempt(good, cluster.manifest(OTHER), InvalidInput, "MANIFEST_MISMATCH")
    # Another ticket's reservation: refused by the target, before any byte.
    stranger = cluster.ticket(LAYOUT)
    await attempt(stranger, manifest, TicketRefused, "TICKET_MISMATCH")
    await attempt(stranger, manifest, TicketRefused, "TICKET_USED")
    # Nothing of all this has used the good ticket up.
    await cluster.push(good, manifest, *here)
    await attempt(good, manifest, TicketRefused, "TICKET_USED")
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].runtime.slots.states()[slot.slot_index].pins == 0


async def test_a_stale_slot_is_fenced(memory_cluster: Cluster) -> None:
    """Fault 1: a stale name never reads the next tenant's data."""
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    assert await cluster.release("a", slot)
    assert not await cluster.release("a", slot)
    again = await cluster.live_slot(LAYOUT, "session-2")
    assert again.slot_index == slot.slot_index
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    manifest = cluster.manifest(LAYOUT)
    await refused(
        cluster.push(ticket, manifest, reserved.reservation_id, slot),
        Fenced,
        "SLOT_GENERATION_STALE",
    )
    await refused(
        cluster.push(ticket, manifest, reserved.reservation_id, again),
        Fenced,
        "SLOT_OF_OTHER_SESSION",
    )
    assert not await cluster.release("a", slot)
    await refused(cluster.release("a", again, "session-1"), Fenced, "SLOT_OF_OTHER_SESSION")
    assert cluster.nodes["a"].role(again) is SlotRole.LIVE


async def test_a_push_to_no_reservation(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    await refused(
        cluster.push(cluster.ticket(LAYOUT), cluster.manifest(LAYOUT), "nothing", slot),
        NotFound,
        "RESERVATION_UNKNOWN",
    )


async def test_a_push_to_a_released_reservation(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    await cluster.release("b", reserved.slot)
    await refused(
        cluster.push(ticket, cluster.manifest(LAYOUT), reserved.reservation_id, slot),
        Conflict,
        "RESERVATION_ENDED",
    )


async def test_chunks_that_are_no_granules_and_windows_out_of_range(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    for changes, field in (
        ({"chunk_bytes": MEBIBYTE + 1}, "chunk_bytes"),
        ({"chunk_bytes": 1000}, "chunk_bytes"),
        ({"window_chunks": 65}, "window_chunks"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await cluster.push(
                cluster.ticket(LAYOUT), cluster.manifest(LAYOUT), "r", slot, **changes
            )
        assert caught.value.field == field


async def land(cluster: Cluster, *messages: mover_pb2.LandRequest) -> list[Any]:
    async def requests() -> Any:
        for message in messages:
            yield message

    answers = []
    async with mapped_errors():
        async for answer in cluster.nodes["b"].stub.Land(requests(), timeout=10):
            answers.append(answer)
    return answers


def offer(cluster: Cluster, **changes: Any) -> mover_pb2.LandRequest:
    values: dict[str, Any] = {
        "protocol_version": 1,
        "ticket": ticket_to_proto(cluster.ticket(LAYOUT)),
        "reservation_id": "r",
        "manifest": manifest_to_proto(cluster.manifest(LAYOUT)),
        "verification": 1,
        "chunk_bytes": MEBIBYTE,
        "window_chunks": 4,
        "worker_address": b"somewhere",
    }
    return mover_pb2.LandRequest(offer=mover_pb2.LandOffer(**{**values, **changes}))


async def test_land_refuses_another_protocol_before_anything_else(memory_cluster: Cluster) -> None:
    """Fault 36."""
    await refused(
        land(memory_cluster, offer(memory_cluster, protocol_version=2)),
        VersionSkew,
        "VERSION_SKEW",
    )


async def test_land_without_an_offer_or_sealed_first(memory_cluster: Cluster) -> None:
    for messages in ((), (mover_pb2.LandRequest(sealed=mover_pb2.LandSealed()),)):
        with pytest.raises(InvalidInput):
            await land(memory_cluster, *messages)


async def test_land_with_an_unreachable_source_aborts(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    with pytest.raises(WorldlineError) as caught:
        await land(
            cluster,
            offer(
                cluster,
                ticket=ticket_to_proto(ticket),
                reservation_id=reserved.reservation_id,
            ),
        )
    assert caught.value.field == "worker_address"
    await cluster.nodes["b"].until_free(reserved.slot)


async def test_land_that_closes_early_aborts(memory_cluster: Cluster) -> None:
    """Fault 11: the sender gives up and the receiver does not wait for the lease."""
    cluster = memory_cluster
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    message = offer(
        cluster,
        ticket=ticket_to_proto(ticket),
        reservation_id=reserved.reservation_id,
        worker_address=cluster.nodes["a"].runtime.transport.address,
    )
    with pytest.raises(WorldlineError) as caught:
        await land(cluster, message)
    assert caught.value.reason == "SOURCE_GONE"
    await cluster.nodes["b"].until_free(reserved.slot)
