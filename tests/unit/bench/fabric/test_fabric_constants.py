"""Wrong constants: a change is a change for every flow, and admission learns it without a burst."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bench.fabric.cell import STATE_BYTES
from bench.fabric.constants import cli
from bench.fabric.constants.changing import ChangingRun
from bench.fabric.constants.measure import measure, samples_until_right
from bench.fabric.constants.policies import FixedConstants, Lesson, ProbedAdmission
from bench.fabric.constants.scenario import CELL, SCENARIOS, Scenario
from bench.fabric.flow import new_flow
from bench.fabric.fluid import Fabric
from tests.unit.bench.fabric.scripted import Scripted

SOLO_S = CELL.solo_s("n0")


def test_a_change_reaches_the_flow_on_the_wire_and_the_next() -> None:
    fabric = Fabric(CELL, Scripted())
    fabric.start(new_flow("first", "n0", "n1", float(STATE_BYTES), CELL.flow_bytes_per_s))
    fabric.advance(SOLO_S / 2)
    fabric.slow_down({("n0", "n1"): 1.3, ("n2", "n3"): 1.3})
    fabric.start(new_flow("second", "n2", "n3", float(STATE_BYTES), CELL.flow_bytes_per_s))
    fabric.start(new_flow("elsewhere", "n3", "n2", float(STATE_BYTES), CELL.flow_bytes_per_s))
    ends_s = {}
    while fabric.flows:
        for flow in fabric.advance(fabric.next_s()):
            ends_s[flow.flow_id] = fabric.now_s
    assert ends_s["first"] == pytest.approx(SOLO_S / 2 * 2.3)
    assert ends_s["second"] == pytest.approx(SOLO_S / 2 + SOLO_S * 1.3)
    assert ends_s["elsewhere"] == pytest.approx(SOLO_S / 2 + SOLO_S)


def test_stale_constants_miss_and_learned_ones_at_most_once_or_twice_a_path() -> None:
    scenario = Scenario(1.3, 1.15)
    fixed = measure(CELL, scenario, FixedConstants, 1)
    learned = measure(CELL, scenario, ProbedAdmission, 1)
    assert fixed.missed >= fixed.admitted > 100
    # Whatever was in flight, and hardly more: paths of one node share a surprise.
    assert 0 < learned.missed <= 2 * learned.in_flight
    assert learned.missed_on_one_path == 1


@pytest.mark.parametrize(
    ("scenario", "samples"),
    # Nobody is harmed by a path that is believed slower than it is: that is learned more slowly.
    [(Scenario(1.07, 1.15), 8), (Scenario(0.7, 1.15), 20)],
)
def test_seven_percent_and_faster_paths_cost_no_miss(scenario: Scenario, samples: int) -> None:
    learned = measure(CELL, scenario, ProbedAdmission, 1)
    assert learned.missed == 0
    assert learned.samples_until_right <= samples


def test_a_change_of_one_sender_costs_one_miss_a_path() -> None:
    scenario = Scenario(1.3, 1.15, "n0")
    assert set(scenario.slower(CELL)) == {("n0", "n1"), ("n0", "n2"), ("n0", "n3")}
    learned = measure(CELL, scenario, ProbedAdmission, 1)
    assert 0 < learned.missed <= 3
    assert learned.missed_on_one_path == 1
    assert measure(CELL, scenario, FixedConstants, 1).missed > 10


def test_one_slow_move_misses_by_itself_and_no_other_is_rejected_for_it() -> None:
    learned = measure(CELL, Scenario(3.0, 1.3, once=True), ProbedAdmission, 1)
    assert (learned.missed, learned.rejected_wrongly) == (1, 0)


def test_only_one_move_is_slow_where_only_one_is() -> None:
    run = ChangingRun(CELL, Scenario(3.0, 1.3, once=True), ProbedAdmission, 2)
    slow = [move for move in run.play().done if move.frozen_s > 2 * SOLO_S]
    assert len(slow) == 1
    assert slow[0].frozen_s == pytest.approx(3 * SOLO_S, rel=0.05)
    assert slow[0].wire_begun_s >= run.changed_s


def test_samples_until_right_counts_by_path_and_from_the_change() -> None:
    def lesson(at_s: float, target: str, times: float) -> Lesson:
        return Lesson(at_s, "n0", target, times * SOLO_S)

    lessons = [
        lesson(0.5, "n1", 1.0),
        lesson(1.5, "n1", 1.1),
        lesson(2.0, "n1", 1.2),
        lesson(2.5, "n1", 1.29),
        lesson(1.5, "n2", 1.31),
        lesson(3.0, "n3", 1.1),
    ]
    assert samples_until_right(CELL, Scenario(1.3, 1.15).slower(CELL), lessons, 1.0) == (3, 1)


def test_the_command_prints_a_row_for_every_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SCENARIOS", SCENARIOS[:2])
    result = CliRunner().invoke(cli.app, ["--seeds", "1"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("1.07x") == 2
    assert "FIXED: MISSED" in result.stdout
