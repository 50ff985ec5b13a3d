"""Wire wait: what a ticket makes its two ends ask for, and until when."""

from __future__ import annotations

import math

import pytest

from services.mover.wires import WireDirection
from services.mover.wirewait import egress_wait, ingress_wait, offer_by_s
from tests.unit.mover.test_tickets import claims

HURRIED = claims(
    ticket_id="t",
    source_node_id="a",
    target_node_id="b",
    horizon_ms=1_620.0,
    move_ms=415.0,
    wire_ms=400.0,
)
GRANT_BY_S = 100.0


def test_the_horizon_runs_from_when_the_source_asks() -> None:
    wait = egress_wait(HURRIED, GRANT_BY_S, 99.0)
    assert wait.until_s == wait.ask.deadline_s == pytest.approx(100.62), "beyond the validity"
    assert (wait.ask.wire_id, wait.ask.peer_node_id) == ("t", "b")
    assert wait.ask.direction is WireDirection.OUT_OF
    assert (wait.ask.move_s, wait.ask.wire_s, wait.ask.bulk) == (0.415, 0.4, False)


def test_the_target_is_told_how_long_ago_that_was() -> None:
    """On a clock of its own: durations cross hosts."""
    wait = ingress_wait(HURRIED, GRANT_BY_S, 7.0, 0.62)
    assert wait.until_s == wait.ask.deadline_s == pytest.approx(8.0)
    assert wait.ask.peer_node_id == "a"
    assert wait.ask.direction is WireDirection.INTO


def test_without_a_horizon_the_validity_bounds_the_wait_and_nothing_is_late() -> None:
    probe = claims(bulk=True)
    for wait in (
        egress_wait(probe, GRANT_BY_S, 99.0),
        ingress_wait(probe, GRANT_BY_S, 7.0, 0.62),
    ):
        assert wait.until_s == GRANT_BY_S
        assert math.isinf(wait.ask.deadline_s)
        assert wait.ask.bulk
    assert offer_by_s(probe, GRANT_BY_S) == GRANT_BY_S


def test_an_offer_may_come_as_late_as_its_source_may_have_waited() -> None:
    assert offer_by_s(HURRIED, GRANT_BY_S) == pytest.approx(101.205)
    hopeless = claims(horizon_ms=100.0, move_ms=415.0)
    assert offer_by_s(hopeless, GRANT_BY_S) == GRANT_BY_S
