"""Reservation: deadlines, order of states, and what can never be promoted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from services.mover.reservation import Reservations, ReservationState
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
CLAIMS = claims(topology_hash=LAYOUT.topology_hash, extent_bytes_max=1024, lease_ms=2000)


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
    book.add("r", grant_by=1.0, **{**values, **changes})
    return book


def landed(now: float = 0.5, *, verification_on: bool = True, **changes: Any) -> Reservations:
    book = reserved(**changes)
    granted = changes.get("claims", CLAIMS)
    book.grant("r", granted, manifest(), verification_on=verification_on, now=now)
    book.landed("r", now + 1.0)
    return book


def test_the_straight_way() -> None:
    book = landed()
    assert book.ids() == ("r",)
    book.verifiable("r", manifest())
    book.verified("r", equal=True)
    assert book.promote("r", SLOT)
    assert not book.promote("r", SLOT)
    assert book.ids() == ()
    assert book.due(10**9) == ()
    assert book.next_deadline() is None
    assert book.of_slot(SLOT) is book.get("r")


def test_the_lease_starts_at_the_grant() -> None:
    book = reserved()
    assert book.next_deadline() == 1.0
    book.grant("r", CLAIMS, manifest(), verification_on=True, now=0.9)
    assert book.next_deadline() == pytest.approx(2.9)
    assert book.due(2.8) == ()
    assert [one.reservation_id for one in book.due(2.9)] == ["r"]


def test_a_grant_after_the_ticket_ran_out() -> None:
    book = reserved()
    with pytest.raises(TicketRefused) as caught:
        book.grant("r", CLAIMS, manifest(), verification_on=True, now=1.0)
    assert caught.value.reason == "TICKET_EXPIRED"


def test_a_second_grant_another_ticket_and_too_many_bytes() -> None:
    book = reserved()
    with pytest.raises(TicketRefused) as caught:
        book.grant("r", claims(ticket_id="u"), manifest(), verification_on=True, now=0.0)
    assert caught.value.reason == "TICKET_MISMATCH"
    book.grant("r", CLAIMS, manifest(), verification_on=True, now=0.0)
    with pytest.raises(TicketRefused) as caught:
        book.grant("r", CLAIMS, manifest(), verification_on=True, now=0.0)
    assert caught.value.reason == "TICKET_USED"
    small = reserved(extent_bytes=1023)
    with pytest.raises(TicketRefused) as caught:
        small.grant("r", CLAIMS, manifest(), verification_on=True, now=0.0)
    assert caught.value.reason == "EXTENT_OVER_RESERVATION"


def test_a_late_completion_is_never_landed() -> None:
    """Fault 9."""
    book = reserved()
    book.grant("r", CLAIMS, manifest(), verification_on=True, now=0.5)
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
        book.add(f"n{number}", CLAIMS, SLOT, 1, 1.0)
        book.end(f"n{number}", "x")
    with pytest.raises(NotFound):
        book.get("r")


@pytest.mark.parametrize("verification_on", [True, False])
def test_probes_are_never_promoted(verification_on: bool) -> None:
    probe = claims(
        topology_hash=LAYOUT.topology_hash, extent_bytes_max=1024, purpose=MovePurpose.PROBE
    )
    probe = dataclasses.replace(probe, lease_ms=2000)
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


def test_promote_needs_an_equal_read_back_of_that_slot() -> None:
    book = landed()
    with pytest.raises(Conflict) as caught:
        book.promote("r", SLOT)
    assert caught.value.reason == "NOT_VERIFIED"
    book.verified("r", equal=True)
    with pytest.raises(Fenced):
        book.promote("r", SlotRef("b", 0, 2))
    book.verified("r", equal=False)
    assert book.get("r").state is ReservationState.LANDED
    with pytest.raises(Conflict):
        book.promote("r", SLOT)


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
        book.add(name, CLAIMS, SLOT, 1, deadline)
    assert [one.reservation_id for one in book.due(5.0)] == ["a", "b", "c"]
