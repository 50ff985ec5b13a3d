"""The simulated cells: the paper's order and contrasts, and that every rule earns its place.

Small cells: a few devices for two or three simulated minutes. The paper's own are played by
`python -m bench.serving simulate`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.serving import cli
from bench.serving.ablation import ABLATIONS, ALL_RULES
from bench.serving.cell import Cell, Outcome, play_cell
from bench.serving.device import A100_WRONG_NUMA_S, RTX_5090_S, Timing
from bench.serving.figure import draw
from bench.serving.policies.table import ARMS, BLIND, GIVES, NO_KNOB, PIN_QUEUE, WORLDLINE
from bench.serving.rungs import PAPER_KNOB_PER_S, PAPER_PAYOFFS, PERIODS_S, rungs
from bench.serving.table4 import table4

#: No stalls and no cold start: what is left is the schedule.
STEADY = replace(Timing(), first_touch_s=(0.0, 0.0), stalls_per_s=0.0)
SMALL = Cell(devices=2, length_s=120.0, bulk_blocks=None, timing=STEADY)
RULES = {arm.name: arm for arm in ABLATIONS}


def played(arm: str, cell: Cell = SMALL, seed: int = 0) -> Outcome:
    return play_cell(cell, ARMS[arm], seed)


@pytest.mark.parametrize("arm", list(ARMS))
def test_a_seed_is_a_run(arm: str) -> None:
    cell = replace(SMALL, timing=Timing(stalls_per_s=0.1), length_s=40.0)
    assert played(arm, cell, 5) == played(arm, cell, 5)
    assert played(arm, cell, 5) != played(arm, cell, 6)


def test_the_order_of_table_4() -> None:
    cell = replace(SMALL, bulk_blocks=20)
    ours, pinned, blind = (played(arm, cell) for arm in (WORLDLINE, PIN_QUEUE, BLIND))
    assert (ours.missed, ours.skipped, ours.bulk_blocks) == (0, 0, 40)
    assert (pinned.missed, pinned.skipped, pinned.bulk_blocks) == (0, 0, 0)
    assert blind.bulk_blocks == 40
    assert blind.missed_share > 0.03
    assert blind.skipped > blind.missed


def test_nothing_but_time_is_lost_to_bulk() -> None:
    """Blocks with bulk beside them: as many as alone, as good, later within their period."""
    with_bulk, alone = played(WORLDLINE), played(PIN_QUEUE)
    assert with_bulk.blocks == alone.blocks
    assert with_bulk.degraded_share == alone.degraded_share
    assert with_bulk.response_p99_s > alone.response_p99_s


def test_the_knob_opens_what_600_ms_closes() -> None:
    assert played(NO_KNOB).bulk_blocks == 0
    for arm in (WORLDLINE, GIVES):
        assert played(arm).bulk_per_device_s == pytest.approx(PAPER_KNOB_PER_S, rel=0.15)


@pytest.mark.parametrize(
    ("period_s", "paper"), list(zip(PERIODS_S[1:], PAPER_PAYOFFS, strict=True))
)
def test_the_knob_pays_less_where_more_is_left(period_s: float, paper: float) -> None:
    cell = replace(SMALL, period_s=period_s)
    knob, without = played(GIVES, cell), played(NO_KNOB, cell)
    assert knob.bulk_blocks / without.bulk_blocks == pytest.approx(paper, rel=0.15)
    assert knob.missed == without.missed == 0
    kept = played(WORLDLINE, cell)
    assert kept.degraded == 0, "bulk costs no quality unless it is given"
    assert kept.bulk_blocks == without.bulk_blocks


def test_the_wrong_numa_node_is_the_other_side_of_the_deadline() -> None:
    wrong = replace(SMALL, timing=replace(STEADY, quantum_s=A100_WRONG_NUMA_S))
    assert played(WORLDLINE, wrong).missed_share > 0.9
    assert played(WORLDLINE).missed_share == 0


def test_24_ms_of_slack_are_no_quantum_of_bulk() -> None:
    timing = replace(STEADY, quantum_s=RTX_5090_S)
    outcome = played(WORLDLINE, replace(SMALL, period_s=0.4, floor_steps=3, timing=timing))
    assert (outcome.missed, outcome.degraded, outcome.bulk_blocks) == (0, 0, 0)


def test_without_its_guard_band_bulk_makes_blocks_late() -> None:
    bare = play_cell(SMALL, RULES["no guard band"], 0)
    whole = play_cell(SMALL, RULES[ALL_RULES], 0)
    assert whole.missed == 0
    assert bare.missed_share > 0.03
    assert bare.bulk_blocks > whole.bulk_blocks, "that is what it was for"


def test_without_skips_one_stall_costs_many_blocks() -> None:
    stalling = replace(SMALL, timing=replace(STEADY, stalls_per_s=0.02))
    whole = play_cell(stalling, RULES[ALL_RULES], 0)
    queueing = play_cell(stalling, RULES["no skip"], 0)
    assert whole.missed_in_a_row <= 1
    assert queueing.missed_in_a_row >= 5
    assert queueing.missed > 3 * whole.missed > 0


def test_without_a_warm_anchor_the_cold_start_is_a_miss() -> None:
    cold = replace(SMALL, timing=replace(STEADY, first_touch_s=(11.0, 11.5)))
    assert play_cell(cold, RULES[ALL_RULES], 0).missed == 0
    assert play_cell(cold, RULES["no warm anchor"], 0).missed == cold.devices
    queueing = play_cell(cold, RULES["no skip, no warm anchor"], 0)
    assert queueing.missed_in_a_row > 50, "eleven seconds are made up a quarter of a period a block"


def test_a_job_that_is_done_asks_for_nothing_more() -> None:
    outcome = played(WORLDLINE, replace(SMALL, bulk_blocks=3))
    assert outcome.bulk_blocks == 3 * SMALL.devices


def test_the_command_prints_its_tables_and_writes_its_document(tmp_path: Path) -> None:
    path = tmp_path / "serving.json"
    arguments = ["simulate", "--seeds", "1", "--length-s", "30", "--json", str(path)]
    result = CliRunner().invoke(cli.app, arguments)
    # Half a minute is too short for the order: the cold start alone is a third of it.
    assert result.exit_code in (0, 1), result.output
    for column in ("C1 MISS %", "PAYOFF", "QUANTUM", "MOST IN A ROW", "AS IN THE PAPER"):
        assert column in result.stdout
    document = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "started_at", "cell"} <= document.keys()
    assert document["seeds"] == [0]
    assert [row["arm"] for row in document["table4"]][:3] == [WORLDLINE, PIN_QUEUE, BLIND]
    assert len(document["rungs"]) == len(PERIODS_S)
    assert "NOT REPRODUCED" in result.stdout or result.exit_code == 0


def test_the_figure_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    cell = replace(SMALL, devices=1, length_s=30.0)
    rows, steps = table4(cell, [0], print), rungs(cell, [0], print)
    texts = [text.get_text() for text in draw(rows, steps, "--figure").axes[2].texts]
    assert texts == [
        f"{rung.payoff:.2f}x\npaper {paper:.2f}x"
        for rung, paper in zip(steps[1:], PAPER_PAYOFFS, strict=True)
    ]


def test_a_figure_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(cli.app, ["simulate", "--figure", str(tmp_path / "serving.txt")])
    assert wrong.exit_code == 2
    assert "--figure" in wrong.output


def test_cost_counts_every_number_of_sessions(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    result = CliRunner().invoke(cli.app, ["cost", "--decisions", "100", "--json", str(path)])
    assert result.exit_code in (0, 1), result.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["sessions"] for row in rows] == [1, 5, 20, 50]
    assert all(0 < row["median_us"] <= row["p99_us"] for row in rows)
