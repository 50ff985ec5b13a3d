"""Experiment: the same for a seed, honest about the paper, and what the command writes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.fabric.cell import GBIT_PER_S, Cell
from bench.fabric.cli import app
from bench.fabric.experiment import experiment
from bench.fabric.policies.oracle import Oracle
from bench.fabric.policies.policy import Done
from bench.fabric.policies.table import INCAST_AWARE, NAIVE, ORACLE, OURS, POLICIES
from bench.fabric.reference import FIGURES, Figure, compared
from bench.fabric.replica import LIVE_GATE_BYTES_PER_S, Replica, replica
from bench.fabric.report import misses, paper_table, table
from bench.fabric.run import Run
from bench.fabric.tally import Row
from bench.fabric.workload import Workload, make_workload

CELL = Cell()
#: Where `python -m bench.fabric` is found.
ROOT = Path(__file__).parents[4]
ROW = Row(
    load=2.0,
    policy=NAIVE,
    seeds=3,
    admitted=67.0,
    on_time=10.0,
    missed=57.0,
    rejected=5.0,
    rejected_later=0.0,
    goodput_gbit_per_s=4.4,
    stalls=1.0,
    oracle_share=0.5,
    bound_share=0.4,
    later_share=0.0,
    reject_reasons={},
    missed_in_seeds=(0, 2),
)
REPLICA = Replica(on_time=10, missed=0, rejected=5, goodput_gbit_per_s=4.4)


def test_a_seed_gives_the_same_rows_in_every_process() -> None:
    command = [sys.executable, "-m", "bench.fabric", "--seeds", "1", "--load", "2"]
    outputs = {
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_another_seed_gives_others_and_the_draws_are_the_same_under_every_load() -> None:
    first, second = (experiment(CELL, [2.0], [seed]) for seed in (1, 2))
    assert first == experiment(CELL, [2.0], [1])
    assert first != second
    light, heavy = (make_workload(CELL, load, 1) for load in (1.0, 4.0))
    assert light.draws == heavy.draws
    assert [offer.sources for offer in light.offers] == [offer.sources for offer in heavy.offers]


def test_load_is_offers_over_capacity() -> None:
    offers = make_workload(CELL, 2.0, 1).offers
    span_s = offers[-1].offered_s - offers[0].offered_s
    assert (len(offers) - 1) / span_s == pytest.approx(2 * CELL.capacity_per_s, rel=0.01)


def test_rows_add_up_and_the_oracle_is_the_measure() -> None:
    rows = {row.policy: row for row in experiment(CELL, [2.0], range(2))}
    assert list(rows) == list(POLICIES)
    for row in rows.values():
        assert row.admitted + row.rejected + row.rejected_later == 72
        assert row.on_time + row.missed == row.admitted
        assert row.oracle_share == pytest.approx(row.on_time / rows[ORACLE].on_time)
        assert row.bound_share is not None
        assert row.bound_share <= row.oracle_share <= 1
    assert rows[ORACLE].missed == rows[OURS].missed == 0
    assert rows[ORACLE].missed_in_seeds == ()
    assert rows[NAIVE].missed_in_seeds == (0, 1)
    assert rows[NAIVE].on_time < rows[INCAST_AWARE].on_time


def test_the_oracle_is_told_what_the_real_core_did(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    class Listening(Oracle):
        def __init__(
            self, cell: Cell, workload: Workload, seed: int, known: Sequence[Done] = ()
        ) -> None:
            told.append(len(known))
            super().__init__(cell, workload, seed, known)

    monkeypatch.setattr("bench.fabric.experiment.Oracle", Listening)
    rows = {row.policy: row for row in experiment(CELL, [4.0], [1])}
    assert told == [rows[OURS].admitted]


@pytest.mark.parametrize(
    ("on_time", "reproduced"),
    [(100, True), (115, True), (85, True), (116, False), (84, False)],
)
def test_what_is_not_within_15_percent_is_called_so(on_time: int, reproduced: bool) -> None:
    figure = Figure(NAIVE, 2.0, "on_time", 100.0)
    comparison = compared(figure, [dataclasses.replace(REPLICA, on_time=on_time)] * 3)
    assert comparison.reproduced is reproduced
    assert ("NOT REPRODUCED" in paper_table([comparison])) is not reproduced


def test_a_miss_where_the_paper_has_none_is_called_so_in_most_experiments() -> None:
    figure = Figure(INCAST_AWARE, 1.4, "missed", 0.0)
    clean, missing = REPLICA, dataclasses.replace(REPLICA, missed=1)
    for experiments, reproduced in (
        ([clean, clean, missing], True),
        ([clean, missing, missing], False),
        ([clean, missing], False),
    ):
        comparison = compared(figure, experiments)
        assert (comparison.relative, comparison.reproduced) == (None, reproduced)


def test_a_single_experiment_may_be_in_range_where_the_mean_is_not() -> None:
    figure = Figure(NAIVE, 2.0, "on_time", 10.0)
    spread = [dataclasses.replace(REPLICA, on_time=on_time) for on_time in range(10, 31)]
    comparison = compared(figure, spread)
    assert (comparison.least, comparison.most, comparison.simulated) == (11, 29, 20)
    assert not comparison.in_range
    assert "out of range" in paper_table([comparison])
    assert compared(figure, spread * 2 + spread[:1] * 5).in_range


def test_a_figure_that_a_constant_was_fitted_to_is_no_prediction() -> None:
    fitted = {(f.policy, f.load, f.quantity) for f in FIGURES if f.fitted}
    assert fitted == {(INCAST_AWARE, 1.0, "missed"), (INCAST_AWARE, 1.4, "missed")}
    comparison = compared(Figure(INCAST_AWARE, 1.0, "missed", 0.0, fitted=True), [REPLICA])
    assert "fitted, not predicted" in paper_table([comparison])


def test_the_papers_arms_are_played_in_three_runs_against_the_live_gate() -> None:
    """41 Gb/s (section 4.1): the paper calls a move of 38 Gb/s missed."""
    gate_gbit_per_s = LIVE_GATE_BYTES_PER_S / GBIT_PER_S
    assert gate_gbit_per_s == pytest.approx(40.84, abs=0.01)
    played = replica(CELL, 2.0, POLICIES[NAIVE], 1)
    assert played.on_time + played.missed + played.rejected == 72
    outcomes = [
        Run(CELL, make_workload(CELL, 2.0, seed, moves=24), POLICIES[NAIVE], seed).play()
        for seed in (3, 4, 5)
    ]
    rates = [move.bytes_per_s for outcome in outcomes for move in outcome.done]
    assert played.on_time == sum(rate >= LIVE_GATE_BYTES_PER_S for rate in rates)
    assert played.rejected == sum(outcome.rejected.total() for outcome in outcomes)


def test_misses_of_the_real_core_name_their_seeds() -> None:
    assert "no move that missed" in misses([ROW])
    assert "seeds 0, 2" in misses([dataclasses.replace(ROW, policy=OURS)])
    assert "seeds 0, 2" in table([dataclasses.replace(ROW, policy=OURS)])


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    document, figure = tmp_path / "fabric.json", tmp_path / "fabric.svg"
    options = ["--seeds", "1", "--load", "2", "--json", str(document), "--figure", str(figure)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    for text in (*POLICIES, "OF ORACLE", "INCAST, TABLE 3", "PAPER, SECTION 6.3"):
        assert text in result.stdout
    content = json.loads(document.read_text())
    assert [row["policy"] for row in content["rows"]] == list(POLICIES)
    assert content["cell"]["lag_max_s"] == CELL.lag_max_s
    assert len(content["paper"]) == len(FIGURES)
    assert [each["fan_in"] for each in content["incast"]] == [1, 2, 3]
    assert "rejected later" in figure.read_text()


@pytest.mark.parametrize("other", [["--pinned"], ["--lag-ms", "10"], ["--stall-ms", "2147"]])
def test_another_experiment_is_compared_with_no_paper(other: list[str]) -> None:
    result = CliRunner().invoke(app, ["--seeds", "1", "--load", "2", *other])
    assert result.exit_code == 0
    assert "PAPER" not in result.stdout
    assert "INCAST" not in result.stdout


def test_without_matplotlib_only_a_figure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused = CliRunner().invoke(app, ["--seeds", "1", "--load", "2", "--figure", "x.png"])
    assert refused.exit_code == 2
    assert "worldline[figures]" in refused.stderr
    assert CliRunner().invoke(app, ["--seeds", "1", "--load", "2"]).exit_code == 0


def test_nothing_imports_matplotlib_before_a_figure_is_asked_for() -> None:
    code = "import sys, bench.fabric.cli; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"
