"""Reservation: deadlines, order of states, and what can never be promoted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.mover.reservation import Reservations, ReservationState, Staged
from services.mover.slots import SlotRef
from tests.unit.mover.cluster import layout_of
from tests.unit.mover.test_tickets import claims
from worldline.contract import DeterminismTier
from worldline.errors import (
    Conflict,
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    NotFound,
    TicketRefused,
)
from worldline.state.manifest import Fingerprint, Manifest
from worldline.ticket import MovePurpose

LAYOUT = layout_of((1000, 24))
SLOT = SlotRef("b", 0, 1)
CLAIMS = claims(
    ticket_id="r", topology_hash=LAYOUT.topology_hash, extent_bytes_max=1024, lease_ms=2000
)


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "session_id": "s",
        "epoch": 3,
        "block_index": 9,
        "layout": LAYOUT,
        "fingerprint": Fingerprint.of({"torch": "2"}),
        "determinism_tier": DeterminismTier.T0_BITWISE,
    }
    return Manifest(**{**values, **changes})


def reserved(**changes: Any) -> Reservations:
    book = Reservations(staged_hold_s=60.0)
    values: dict[str, Any] = {"claims": CLAIMS, "slot": SLOT, "extent_bytes": 1024}
    book.add(offer_by=1.0, **{**values, **changes})
    book.prepared("r")
    return book


STAGED = Staged("s", 3, 9, LAYOUT)


def offer(book: Reservations, now: float, **changes: Any) -> None:
    values: dict[str, Any] = {
        "claims": CLAIMS,
        "extent_bytes": LAYOUT.extent_bytes,
        "verification_on": True,
        "until": 5.0,
    }
    book.offered("r", now=now, **{**values, **changes})


def grant(book: Reservations, now: float, **changes: Any) -> None:
    """Offered and granted at once."""
    offer(book, now, **changes)
    book.granted("r", now)


def landed(now: float = 0.5, *, verification_on: bool = True, **changes: Any) -> Reservations:
    book = reserved(**changes)
    grant(book, now, claims=changes.get("claims", CLAIMS), verification_on=verification_on)
    book.go("r", STAGED, now)
    book.landed("r", now + 1.0)
    return book


def test_the_straight_way() -> None:
    book = landed()
    assert book.ids() == ("r",)
    assert book.get("r").state is ReservationState.VERIFIED  # by the digests of what landed
    book.verifiable("r", manifest())
    book.verified("r", equal=True)
    assert book.promote("r", SLOT)
    assert not book.promote("r", SLOT)
    assert book.ids() == ()
    assert book.due(10**9) == ()
    assert book.next_deadline() is None
    assert book.of_slot(SLOT) is book.get("r")


def test_a_reservation_waits_for_its_offer_then_for_the_wire_then_for_the_lease() -> None:
    book = reserved()
    assert book.next_deadline() == 1.0, "until an offer may still come"
    offer(book, 0.5, until=5.0)
    assert book.next_deadline() == 5.0, "while it waits the ticket's validity is nothing to it"
    assert book.due(4.9) == ()
    book.granted("r", 4.0)
    assert book.next_deadline() == pytest.approx(6.0), "the lease starts with the grant"
    book.go("r", STAGED, 5.9)
    assert book.next_deadline() == pytest.approx(7.9), "and again with the go"
    assert book.due(7.8) == ()
    assert [one.reservation_id for one in book.due(7.9)] == ["r"]


def test_an_offer_after_the_ticket_ran_out_or_a_go_after_the_lease() -> None:
    book = reserved()
    with pytest.raises(TicketRefused) as caught:
        offer(book, 1.0)
    assert caught.value.reason == "TICKET_EXPIRED"
    grant(book, 0.9)
    with pytest.raises(DeadlineExceeded) as late:
        book.go("r", STAGED, 2.9)
    assert late.value.reason == "LEASE_EXPIRED"


def test_a_go_before_the_grant() -> None:
    book = reserved()
    offer(book, 0.0)
    with pytest.raises(Conflict) as caught:
        book.go("r", STAGED, 0.0)
    assert caught.value.reason == "NOT_GRANTED"
    assert book.get("r").state is ReservationState.WAITING


def test_a_second_offer_another_ticket_and_too_many_bytes() -> None:
    book = reserved()
    with pytest.raises(TicketRefused) as caught:
        offer(book, 0.0, claims=claims(ticket_id="u"))
    assert caught.value.reason == "TICKET_MISMATCH"
    offer(book, 0.0)
    with pytest.raises(TicketRefused) as caught:
        offer(book, 0.0)
    assert caught.value.reason == "TICKET_USED"
    small = reserved(extent_bytes=1023)
    with pytest.raises(TicketRefused) as caught:
        offer(small, 0.0)
    assert caught.value.reason == "EXTENT_OVER_RESERVATION"


def test_a_late_completion_is_never_landed() -> None:
    """Fault 9."""
    book = reserved()
    grant(book, 0.5)
    book.go("r", STAGED, 0.5)
    with pytest.raises(DeadlineExceeded) as caught:
        book.landed("r", 2.5)
    assert caught.value.reason == "LEASE_EXPIRED"
    book.end("r", "the lease ran out")
    for attempt in (
        lambda: book.landed("r", 1.0),
        lambda: book.verified("r", equal=True),
        lambda: book.promote("r", SLOT),
    ):
        with pytest.raises(Conflict) as ended:
            attempt()
        assert ended.value.reason == "RESERVATION_ENDED"
        assert "the lease ran out" in ended.value.message


def test_ending_is_idempotent_and_remembered_within_bounds() -> None:
    book = reserved()
    assert book.end("r", "first") is not None
    assert book.end("r", "second") is None
    with pytest.raises(Conflict, match="first"):
        book.get("r")
    for number in range(300):
        book.add(replace(CLAIMS, ticket_id=f"n{number}"), SLOT, 1, 1.0)
        book.end(f"n{number}", "x")
    with pytest.raises(NotFound):
        book.get("r")


@pytest.mark.parametrize("verification_on", [True, False])
def test_probes_are_never_promoted(verification_on: bool) -> None:
    probe = claims(
        ticket_id="r",
        topology_hash=LAYOUT.topology_hash,
        extent_bytes_max=1024,
        purpose=MovePurpose.PROBE,
    )
    probe = replace(probe, lease_ms=2000)
    book = landed(claims=probe, now=0.0, verification_on=verification_on)
    for attempt in (lambda: book.verifiable("r", manifest()), lambda: book.promote("r", SLOT)):
        with pytest.raises(Conflict) as caught:
            attempt()
        assert caught.value.reason == "NOT_PROMOTABLE"


def test_unverified_transfers_are_never_promoted() -> None:
    book = landed(verification_on=False)
    with pytest.raises(Conflict) as caught:
        book.verifiable("r", manifest())
    assert caught.value.reason == "NOT_PROMOTABLE"


def test_promote_needs_that_slot_and_digests_that_are_still_equal() -> None:
    book = landed()
    with pytest.raises(Fenced):
        book.promote("r", SlotRef("b", 0, 2))
    book.verified("r", equal=False)
    assert book.get("r").state is ReservationState.LANDED
    with pytest.raises(Conflict) as caught:
        book.promote("r", SLOT)
    assert caught.value.reason == "NOT_VERIFIED"
    book.verified("r", equal=True)
    assert book.promote("r", SLOT)


@pytest.mark.parametrize("gone", [False, True])
def test_nothing_is_promoted_before_it_has_landed(gone: bool) -> None:
    book = reserved()
    grant(book, 0.0)
    if gone:
        book.go("r", STAGED, 0.0)
    with pytest.raises(Conflict) as caught:
        book.promote("r", SLOT)
    assert caught.value.reason == "NOT_VERIFIED"


@pytest.mark.parametrize(
    "changes",
    [{"session_id": "t"}, {"epoch": 4}, {"block_index": 8}, {"layout": layout_of((1024,))}],
)
def test_verify_of_another_manifest(changes: dict[str, Any]) -> None:
    book = landed()
    with pytest.raises(InvalidInput) as caught:
        book.verifiable("r", manifest(**changes))
    assert caught.value.reason == "MANIFEST_MISMATCH"
    assert caught.value.field == f"manifest.{next(iter(changes))}"


def test_verify_before_anything_has_landed() -> None:
    book = reserved()
    with pytest.raises(Conflict) as caught:
        book.verifiable("r", manifest())
    assert caught.value.reason == "NOT_STAGED"


def test_due_is_ordered_by_deadline() -> None:
    book = Reservations(60.0)
    for name, deadline in (("c", 3.0), ("a", 2.0), ("b", 2.0), ("d", 9.0)):
        book.add(replace(CLAIMS, ticket_id=name), SLOT, 1, deadline)
    assert [one.reservation_id for one in book.due(5.0)] == ["a", "b", "c"]
