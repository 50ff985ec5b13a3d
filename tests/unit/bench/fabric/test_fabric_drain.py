"""Drain: planned rounds hold on the wire, and interactive moves keep what they were promised."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from typer.testing import CliRunner

from bench.fabric.cell import STATE_BYTES
from bench.fabric.drain import cli, report
from bench.fabric.drain.demand import CELL, drain, plan, scattered
from bench.fabric.drain.run import DrainRun
from bench.fabric.flow import Flow
from bench.fabric.policies.admission import WorldlineAdmission
from bench.fabric.policies.policy import Admit, Done, Terms
from bench.fabric.workload import Offer, Workload, make_workload
from worldline.admissibility.bulk.plan import Discipline

NOTHING = Workload((), {})


def disjoint(wires: list[Done]) -> bool:
    """No node is in two bulk moves at once, in whichever direction."""
    for node in CELL.nodes:
        at_node = [wire for wire in wires if node in (wire.source, wire.target)]
        at_node.sort(key=lambda wire: wire.wire_begun_s)
        for first, then in itertools.pairwise(at_node):
            if then.wire_begun_s < first.wire_ended_s:
                return False
    return True


@pytest.mark.parametrize("drained", [1, 3])
def test_a_drain_takes_no_longer_than_rounds_times_solo_and_a_tenth(drained: int) -> None:
    planned = plan(CELL, drain(CELL, drained, sessions=6))
    assert planned.discipline is Discipline.ROUNDS
    assert len(planned.rounds) == 6
    run = DrainRun(CELL, planned, NOTHING, seed=1)
    run.play()
    assert len(run.bulk) == 6 * drained
    assert run.bulk_refused == 0
    assert disjoint(run.bulk)
    makespan_s = max(wire.wire_ended_s for wire in run.bulk)
    solo_s = max(CELL.solo_s(node) for node in CELL.nodes[:drained])
    assert makespan_s <= 1.1 * 6 * solo_s
    # No order is faster than the node with the most moves.
    assert makespan_s >= planned.makespan_ms_min / 1e3


def test_every_scattered_state_arrives_where_it_was_planned_to() -> None:
    moves = scattered(CELL, seed=2, moves=20)
    run = DrainRun(CELL, plan(CELL, moves), NOTHING, seed=2)
    run.play()
    arrived = {wire.offer.move_id: (wire.source, wire.target) for wire in run.bulk}
    assert arrived == {move.move_id: move.node_ids for move in moves}


def test_interactive_moves_are_on_time_beside_a_drain_and_the_drain_ends() -> None:
    planned = plan(CELL, drain(CELL, 3, sessions=4))
    workload = make_workload(CELL, 0.5, seed=1, pinned=True, moves=40)
    run = DrainRun(CELL, planned, workload, seed=1)
    outcome = run.play()
    assert len(run.bulk) == 12
    assert len(outcome.done) + len(outcome.reason_by_move) == 40
    assert len(outcome.done) > 25
    assert all(move.on_time for move in outcome.done)
    assert disjoint(run.bulk)
    assert len(run.policy.core.holds) == 0


def test_nobody_is_sent_to_a_node_that_is_emptied() -> None:
    workload = make_workload(CELL, 0.5, seed=1, pinned=True, moves=40)
    for moves, emptied in ((drain(CELL, 2, sessions=3), {"n0", "n1"}), (scattered(CELL, 1), set())):
        run = DrainRun(CELL, plan(CELL, moves), workload, seed=1)
        targets = {move.target for move in run.play().done}
        assert targets == set(CELL.nodes) - emptied


def test_no_bulk_wire_begins_where_an_interactive_move_wants_one() -> None:
    cell = dataclasses.replace(CELL, lag_max_s=0.0)
    planned = plan(cell, drain(cell, 3, sessions=6))
    workload = make_workload(cell, 0.5, seed=1, pinned=True, moves=40)
    run = DrainRun(cell, planned, workload, seed=1)
    for move in run.play().done:
        ends = {move.source, move.target}
        for bulk in run.bulk:
            if ends & {bulk.source, bulk.target}:
                assert not move.asked_s < bulk.wire_begun_s < move.wire_ended_s


def test_bulk_is_told_apart_and_gives_way() -> None:
    policy = WorldlineAdmission(CELL, NOTHING, 1)
    offer = Offer("bulk", ("n0",), STATE_BYTES, 60.0, 0.0)
    answer = policy.decide_bulk(offer, "n1", 0.0)
    assert isinstance(answer, Admit)
    assert answer.terms is not None
    assert answer.terms.bulk


def test_a_bulk_move_that_was_refused_its_wire_is_made_later() -> None:
    run = DrainRun(CELL, plan(CELL, drain(CELL, 2, sessions=3)), NOTHING, seed=3)
    ask = run._granting.ask
    late = iter((True,))

    def ask_late(flow: Flow, terms: Terms, deadline_s: float, now_s: float) -> None:
        ask(flow, terms, now_s if next(late, False) else deadline_s, now_s)

    run._granting.ask = ask_late  # type: ignore[method-assign]
    run.play()
    assert run.bulk_refused == 1
    assert len({wire.offer.move_id for wire in run.bulk}) == len(run.bulk) == 6
    assert len(run.policy.core.holds) == 0


def test_a_long_lag_costs_every_round_as_much() -> None:
    planned = plan(CELL, drain(CELL, 1, sessions=6))
    makespans = []
    for lag_max_s in (0.0, 0.2):
        run = DrainRun(dataclasses.replace(CELL, lag_max_s=lag_max_s), planned, NOTHING, seed=1)
        run.play()
        makespans.append(max(wire.wire_ended_s for wire in run.bulk))
    assert makespans[1] > makespans[0] + 0.2


def test_the_command_prints_a_row_for_every_demand_and_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "LOADS", (0.0, 0.5))
    monkeypatch.setattr(report, "DEMANDS", {"drain of two": lambda cell, _: drain(cell, 2, 2)})
    result = CliRunner().invoke(cli.app, ["--seeds", "1", "--lag-ms", "0"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("drain of two") == 2
    assert "100.0%" in result.stdout
