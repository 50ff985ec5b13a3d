"""Seats of a drain: who gets which of the free slots."""

from __future__ import annotations

from services.placement.drain_seats import assign_seats
from tests.unit.placement.drains import resident


def test_who_has_least_to_choose_from_chooses_first() -> None:
    residents = [resident("a", "23"), resident("b", "2"), resident("c", "23")]
    free = {"n2/cpu": 1, "n3/cpu": 2}
    seats = assign_seats([(one, one.seats) for one in residents], free, {}, {})
    assert {name: one.node_id for name, one in seats.items()} == {"a": "n3", "b": "n2", "c": "n3"}
