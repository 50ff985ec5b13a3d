"""Granting: the movers' own queues between an admitted move and its wire."""

from __future__ import annotations

import pytest

from bench.fabric.cell import STATE_BYTES, Cell
from bench.fabric.flow import Flow, new_flow
from bench.fabric.granting import Granting
from bench.fabric.policies.policy import Terms
from services.mover.wires import Wires

CELL = Cell()
TERMS = Terms(move_s=0.2, wire_s=0.18)


def flow(source: str, target: str) -> Flow:
    return new_flow(f"{source}-{target}", source, target, float(STATE_BYTES), 1e9)


def test_a_wire_on_a_quiet_cell_is_granted_at_once_and_held_until_its_end() -> None:
    granting = Granting(CELL.nodes)
    first, second = flow("n1", "n0"), flow("n2", "n0")
    granting.ask(first, TERMS, 0.4, 0.0)
    granting.ask(second, TERMS, 0.5, 0.0)
    decided = granting.decide(0.0)
    assert decided.started == (first,)
    assert not decided.refused
    assert not granting.decide(0.1).started
    granting.end(first, 0.15)
    assert granting.next_s() == 0.15
    assert granting.decide(0.15).started == (second,)


def test_an_earlier_deadline_is_served_first_and_bulk_last() -> None:
    granting = Granting(CELL.nodes)
    running = flow("n1", "n0")
    granting.ask(running, TERMS, 0.4, 0.0)
    granting.decide(0.0)
    bulk, urgent = flow("n2", "n0"), flow("n3", "n0")
    # Even where it was first and its own deadline is the earlier one.
    granting.ask(bulk, Terms(0.2, 0.18, bulk=True), 0.59, 0.01)
    granting.ask(urgent, TERMS, 0.6, 0.02)
    granting.decide(0.02)
    granting.end(running, 0.18)
    assert granting.decide(0.18).started == (urgent,)
    granting.end(urgent, 0.36)
    assert granting.decide(0.36).started == (bulk,)


def test_bulk_without_a_deadline_waits_as_long_as_it_takes() -> None:
    granting = Granting(CELL.nodes)
    running, bulk = flow("n1", "n0"), flow("n2", "n0")
    granting.ask(running, TERMS, 0.4, 0.0)
    granting.ask(bulk, Terms(0.2, 0.18, bulk=True), float("inf"), 0.0)
    assert granting.decide(0.0).started == (running,)
    granting.end(running, 100.0)
    assert granting.decide(100.0).started == (bulk,)


def test_who_would_be_late_is_refused_while_it_waits_and_leaves_nothing_behind() -> None:
    granting = Granting(CELL.nodes)
    running, late = flow("n1", "n0"), flow("n2", "n0")
    granting.ask(running, TERMS, 0.4, 0.0)
    granting.decide(0.0)
    granting.ask(late, TERMS, 0.35, 0.0)
    assert granting.decide(0.0).refused == (late,)
    assert granting.next_s() == float("inf") or granting.next_s() > 0.0
    granting.ask(flow("n2", "n3"), TERMS, 0.4, 0.0)
    assert [each.target for each in granting.decide(0.0).started] == ["n3"]


def test_a_sender_waits_for_its_own_egress_first() -> None:
    granting = Granting(CELL.nodes)
    first, second = flow("n1", "n0"), flow("n1", "n2")
    for each, deadline_s in ((first, 0.4), (second, 0.6)):
        granting.ask(each, TERMS, deadline_s, 0.0)
    assert granting.decide(0.0).started == (first,)
    granting.end(first, 0.18)
    assert granting.decide(0.18).started == (second,)


def test_the_queues_are_the_movers_own() -> None:
    granting = Granting(CELL.nodes)
    assert all(type(wires) is Wires for wires in granting._wires.values())


@pytest.mark.parametrize("repeat", [1, 2])
def test_ending_a_flow_that_never_asked_changes_nothing(repeat: int) -> None:
    granting = Granting(CELL.nodes)
    for _ in range(repeat):
        granting.end(flow("n1", "n0"), 0.0)
    assert granting.next_s() == float("inf")
