"""Drain: planned rounds hold on the wire, and interactive moves keep what they were promised."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from typer.testing import CliRunner

from bench.fabric.cell import HORIZON_S, STATE_BYTES, Cell
from bench.fabric.drain import cli, report
from bench.fabric.drain.demand import CELL, drain, scattered
from bench.fabric.drain.run import DrainRun
from bench.fabric.flow import Flow
from bench.fabric.policies.admission import WorldlineAdmission
from bench.fabric.policies.policy import Admit, Done, Terms
from bench.fabric.workload import Offer, Workload, make_workload
from services.placement.drain_values import DrainState
from worldline.admissibility.bulk.plan import Discipline

NOTHING = Workload((), {})
#: From a decision until both ends are ready, as in the paper's harness.
LONG_LAG = dataclasses.replace(CELL, lag_max_s=0.040)


def disjoint(wires: list[Done]) -> bool:
    """No node is in two bulk moves at once, in whichever direction."""
    for node in CELL.nodes:
        at_node = [wire for wire in wires if node in (wire.source, wire.target)]
        at_node.sort(key=lambda wire: wire.wire_begun_s)
        for first, then in itertools.pairwise(at_node):
            if then.wire_begun_s < first.wire_ended_s:
                return False
    return True


@pytest.mark.parametrize("cell", [CELL, LONG_LAG], ids=["5 ms", "40 ms"])
@pytest.mark.parametrize("drained", [1, 3])
def test_a_drain_takes_no_longer_than_rounds_times_solo_and_a_tenth(
    drained: int, cell: Cell
) -> None:
    run = DrainRun(cell, drain(cell, drained, sessions=6), NOTHING, seed=1)
    assert run.plan.discipline is Discipline.ROUNDS
    assert len(run.plan.rounds) == 6
    run.play()
    assert len(run.bulk) == 6 * drained
    assert run.bulk_refused == run.bulk_withdrawn == 0
    assert disjoint(run.bulk)
    assert set(run.concluded.values()) == {DrainState.DRAINED}
    makespan_s = max(wire.wire_ended_s for wire in run.bulk)
    assert run.planned_s == pytest.approx(6 * max(cell.solo_s(n) for n in cell.nodes[:drained]))
    # No order is faster than the node with the most moves.
    assert 6 * cell.solo_s("n0") <= makespan_s <= 1.1 * run.planned_s


def test_every_scattered_state_arrives_where_it_was_to() -> None:
    residents = scattered(CELL, seed=2, moves=20)
    run = DrainRun(CELL, residents, NOTHING, seed=2)
    run.play()
    arrived = {wire.offer.move_id: (wire.source, wire.target) for wire in run.bulk}
    assert arrived == {one.session_id: (one.node_id, one.seats[0].node_id) for one in residents}
    assert disjoint(run.bulk)


@pytest.mark.parametrize("cell", [CELL, LONG_LAG], ids=["5 ms", "40 ms"])
def test_interactive_moves_are_on_time_beside_a_drain_and_the_drain_ends(cell: Cell) -> None:
    workload = make_workload(cell, 0.5, seed=1, pinned=True, moves=40)
    run = DrainRun(cell, drain(cell, 3, sessions=4), workload, seed=1)
    outcome = run.play()
    assert len(run.bulk) == 12
    assert len(outcome.done) + len(outcome.reason_by_move) == 40
    assert len(outcome.done) > 25
    assert all(move.on_time for move in outcome.done)
    assert disjoint(run.bulk)
    assert len(run.policy.core.holds) == 0


def test_nobody_is_sent_to_a_node_that_is_emptied() -> None:
    workload = make_workload(CELL, 0.5, seed=1, pinned=True, moves=40)
    for demand, emptied in (
        (drain(CELL, 2, sessions=3), {"n0", "n1"}),
        (scattered(CELL, 1), set[str]()),
    ):
        run = DrainRun(CELL, demand, workload, seed=1)
        targets = {move.target for move in run.play().done}
        assert targets == set(CELL.nodes) - emptied


def test_no_bulk_wire_begins_where_an_interactive_move_wants_one() -> None:
    """With a lag too: what was asked for ahead is withdrawn for the interactive one."""
    for cell in (dataclasses.replace(CELL, lag_max_s=0.0), LONG_LAG):
        workload = make_workload(cell, 0.5, seed=1, pinned=True, moves=40)
        run = DrainRun(cell, drain(cell, 3, sessions=6), workload, seed=1)
        for move in run.play().done:
            ends = {move.source, move.target}
            for bulk in run.bulk:
                if ends & {bulk.source, bulk.target}:
                    assert not move.asked_s < bulk.wire_begun_s < move.wire_ended_s
    assert run.bulk_withdrawn > 0


def test_bulk_is_told_apart_and_may_wait_for_longer_than_its_world_may_stand_still() -> None:
    policy = WorldlineAdmission(CELL, NOTHING, 1)
    for number in range(2):
        offer = Offer(f"bulk-{number}", ("n0",), STATE_BYTES, HORIZON_S, 0.0)
        answer = policy.decide_bulk(offer, f"n{number + 1}", 0.0)
        assert isinstance(answer, Admit)
        assert answer.terms is not None
        assert answer.terms.bulk


def test_a_bulk_move_that_was_refused_its_wire_is_made_later() -> None:
    run = DrainRun(CELL, drain(CELL, 2, sessions=3), NOTHING, seed=3)
    ask = run._granting.ask
    late = iter((True,))

    def ask_late(flow: Flow, terms: Terms, deadline_s: float, now_s: float) -> None:
        ask(flow, terms, now_s if next(late, False) else deadline_s, now_s)

    run._granting.ask = ask_late  # type: ignore[method-assign]
    run.play()
    assert run.bulk_refused == 1
    assert len({wire.offer.move_id for wire in run.bulk}) == len(run.bulk) == 6
    assert len(run.policy.core.holds) == 0


def test_of_all_lags_only_the_first_is_paid() -> None:
    makespans = []
    for lag_max_s in (0.0, 0.1):
        cell = dataclasses.replace(CELL, lag_max_s=lag_max_s)
        run = DrainRun(cell, drain(cell, 1, sessions=6), NOTHING, seed=1)
        run.play()
        makespans.append(max(wire.wire_ended_s for wire in run.bulk))
    # The flows' own jitter is the same in both.
    assert makespans[0] < makespans[1] <= makespans[0] + 0.1 + 1e-9


def test_the_command_prints_a_row_for_every_demand_and_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "LOADS", (0.0, 0.5))
    monkeypatch.setattr(report, "DEMANDS", {"drain of two": lambda cell, _: drain(cell, 2, 2)})
    result = CliRunner().invoke(cli.app, ["--seeds", "1", "--lag-ms", "0"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("drain of two") == 2
    assert "100.0%" in result.stdout
