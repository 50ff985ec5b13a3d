"""Ticket abuse: what a ticket does not say, a mover does not do."""

from __future__ import annotations

import dataclasses
import itertools
import math
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
    check_offered,
    check_source,
    check_target,
)
from services.mover.transport.memory import MemoryTransport
from tests.unit.mover.cluster import MEBIBYTE, Cluster, layout_of, until
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    InvalidInput,
    TicketRefused,
    VersionSkew,
    WorldlineError,
)
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.rpc.duplex import Duplex
from worldline.state.codec import layout_to_proto
from worldline.ticket import (
    MovePurpose,
    SignedTicket,
    TicketClaims,
    TicketSigner,
    claims_to_proto,
    ticket_to_proto,
)
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
    check_offered(claims(), SUBJECT)
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
        check_offered(claims(), subject)
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


async def test_an_offer_is_judged_by_when_its_wire_was_asked_for(memory_cluster: Cluster) -> None:
    """Its source may have had to wait for its turn; validity bounds the time before that."""
    gate_ = memory_cluster.nodes["b"].runtime.gate
    issued_ms = round(time.monotonic() * 1e3) - 60_000
    ticket = memory_cluster.ticket(LAYOUT, issued_at_ms=issued_ms, valid_for_ms=10_000)
    await refused(gate_.verify(ticket), TicketRefused, "TICKET_EXPIRED")
    await refused(gate_.verify(ticket, 49.0), TicketRefused, "TICKET_EXPIRED")
    admitted = await gate_.verify(ticket, 51.0)
    assert admitted.grant_by < memory_cluster.nodes["b"].runtime.now()
    await refused(gate_.verify(ticket, 70.0), TicketRefused, "TICKET_NOT_YET_VALID")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lease_ms", 0),
        ("lease_ms", 2**64 - 1),
        *itertools.product(("horizon_ms", "move_ms", "wire_ms"), (-1.0, math.nan, math.inf)),
    ],
)
async def test_fault_12_a_lease_or_a_horizon_that_is_none(
    memory_cluster: Cluster, field: str, value: float
) -> None:
    """Signed though it is, nothing is reserved or pushed under it. A lease is a whole number."""
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    message = claims_to_proto(cluster.claims(LAYOUT))
    setattr(message, field, value)
    serialized, signer = message.SerializeToString(), cluster.admission.signer
    ticket = SignedTicket(serialized, signer._private_key.sign(serialized), signer.key_id)
    error = await refused(cluster.reserve(ticket, LAYOUT), InvalidInput, "INVALID_INPUT")
    assert error.field == f"ticket.{field}"
    pushing = cluster.push(ticket, cluster.manifest(LAYOUT), message.ticket_id, slot)
    error = await refused(pushing, InvalidInput, "INVALID_INPUT")
    assert error.field == f"ticket.{field}"
    for node in cluster.nodes.values():
        census = node.runtime.census()
        held = ("reservations", "tickets_remembered", "wires_held", "wires_waiting")
        assert [census[name] for name in held] == [0, 0, 0, 0]
    assert cluster.nodes["b"].runtime.slots.free_count() == 2


@pytest.mark.parametrize("value", [-1, 0.5, math.nan, math.inf, 0])
def test_fault_12_a_lease_that_is_none_is_never_signed(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        claims(lease_ms=value)
    assert caught.value.field == "ticket.lease_ms"


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
        TicketRefused,
        "TICKET_MISMATCH",
    )


async def test_a_push_whose_reservation_never_comes_ends_with_its_ticket(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    slot = await cluster.live_slot(LAYOUT)
    started = time.monotonic()
    claims = cluster.claims(LAYOUT, valid_for_ms=300)
    with pytest.raises(WorldlineError) as caught:
        await cluster.push(cluster.sign(claims), cluster.manifest(LAYOUT), claims.ticket_id, slot)
    # Whichever end notices first.
    assert caught.value.reason in ("RESERVATION_UNKNOWN", "TICKET_EXPIRED")
    assert time.monotonic() - started > 0.25
    await cluster.nodes["a"].until_quiet()
    await until(lambda: not len(cluster.nodes["b"].runtime.reserving))
    assert cluster.nodes["a"].runtime.slots.states()[slot.slot_index].pins == 0


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


async def land(
    cluster: Cluster, *messages: mover_pb2.LandRequest, closing: bool = False
) -> list[Any]:
    """What the target answers; as a source does, keep the stream open until then."""
    stream = Duplex(cluster.nodes["b"].stub.Land(timeout=60))
    try:
        for message in messages:
            await stream.write(message)
        if closing:
            await stream.done_writing()
        answers = []
        while (answer := await stream.read()) is not None:
            answers.append(answer)
        return answers
    finally:
        await stream.close()


def offer(cluster: Cluster, **changes: Any) -> mover_pb2.LandRequest:
    values: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "ticket": ticket_to_proto(cluster.ticket(LAYOUT)),
        "reservation_id": "r",
        "session_id": "session-1",
        "epoch": 4,
        "layout": layout_to_proto(LAYOUT),
        "device": "cpu",
        "algorithm": "crc64nvme",
        "granule_bytes": MEBIBYTE,
        "verification": 1,
        "chunk_bytes": MEBIBYTE,
        "window_chunks": 4,
        "worker_address": b"somewhere",
    }
    return mover_pb2.LandRequest(offer=mover_pb2.LandOffer(**{**values, **changes}))


async def test_land_refuses_another_protocol_before_anything_else(memory_cluster: Cluster) -> None:
    """Fault 36."""
    await refused(
        land(memory_cluster, offer(memory_cluster, protocol_version=PROTOCOL_VERSION + 1)),
        VersionSkew,
        "VERSION_SKEW",
    )


async def test_land_without_an_offer_or_go_first(memory_cluster: Cluster) -> None:
    with pytest.raises(InvalidInput):
        await land(memory_cluster, closing=True)
    with pytest.raises(InvalidInput):
        await land(memory_cluster, mover_pb2.LandRequest())


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
        await land(cluster, message, closing=True)
    assert caught.value.reason == "SOURCE_GONE"
    await cluster.nodes["b"].until_free(reserved.slot)
