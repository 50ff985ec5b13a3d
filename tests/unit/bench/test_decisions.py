"""Decision speed: what is timed is real, follows from its seed, and is counted right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.decisions.cli import app
from bench.decisions.parts import Part
from bench.decisions.report import quantile, rows
from bench.decisions.run import Run, Timings
from bench.decisions.scene import SLOTS_PER_NODE, Size, kind_of

SMALL = Size(nodes=48, sessions=400)


@pytest.fixture(scope="module")
def run() -> Run:
    run = Run(SMALL, seed=7)
    run.scene.learn()
    return run


@pytest.fixture(scope="module")
def timings(run: Run) -> Timings:
    return run.play(300)


def test_every_decision_is_timed_and_counted(timings: Timings) -> None:
    assert len(timings.placement) == len(timings.admission) == len(timings.holds) == 300
    assert sum(timings.verdicts.values()) == 300
    assert len(timings.signing) == timings.verdicts["admitted"]
    assert all(value > 0 for value in timings.placement.wall)
    # A move that begins changes its session once, and one that ends once more.
    assert len(timings.keeping) == timings.verdicts["admitted"] + len(timings.finishing)
    assert all(len(part.cpu) == len(part) for part in (timings.decisions, *timings.upkeep))


def test_some_are_admitted_and_some_refused_and_moves_end(timings: Timings) -> None:
    assert timings.verdicts["admitted"] > 30
    assert len(timings.verdicts) >= 3
    assert max(timings.holds) > 10
    assert len(timings.finishing) > 0


def test_the_same_seed_decides_the_same_and_another_one_does_not(timings: Timings) -> None:
    for seed in (7, 8):
        again = Run(SMALL, seed)
        again.scene.learn()
        assert (again.play(300).verdicts == timings.verdicts) is (seed == 7)


def test_the_shortlist_that_is_kept_is_what_is_counted(run: Run, timings: Timings) -> None:
    scene = run.scene
    for ended in (False, True):
        if ended:
            run.drain()
        assert scene.shortlist.candidates(0.0) == scene.counted()
        assert bool(scene.moves) is not ended
    assert len(run.core.holds) == 0
    moved = [one for one in scene.sessions.values() if one.epoch > 1]
    assert len(moved) > 30
    assert sum(SLOTS_PER_NODE - one.slots_free for one in scene.counted()) == SMALL.sessions


def test_only_paths_between_nodes_of_one_kind_are_measured(run: Run) -> None:
    pairs = [pair for pair, _ in run.core.paths.sorted()]
    assert run.paths <= len(pairs)
    assert all(kind_of(source) == kind_of(target) for source, target in pairs)


def _part(values_ms: list[int]) -> Part:
    """Half of it on the processor."""
    return Part([value * 10**6 for value in values_ms], [value * 10**6 // 2 for value in values_ms])


def _timings(placement_ms: list[int], admission_ms: list[int]) -> Timings:
    found = Timings()
    found.placement, found.admission = _part(placement_ms), _part(admission_ms)
    found.holds = [3] * len(placement_ms)
    found.verdicts["admitted"] = len(placement_ms)
    found.signing, found.finishing, found.keeping = _part([2]), _part([3]), _part([1])
    return found


def test_rates_and_latencies_by_hand() -> None:
    runs = [_timings([1, 2], [2, 5]), _timings([1, 1], [1, 3]), _timings([2, 2], [2, 4])]
    by_name = {row.spec.name: row for row in rows(runs, _part([6]))}
    # Two decisions in 10, 6 and 10 ms, and each time 4 ms of upkeep.
    assert by_name["decisions.rate"].value == pytest.approx(2 / 0.014)
    assert by_name["decisions.rate"].ok is False
    assert by_name["decisions.cpu-rate"].value == pytest.approx(2 / 0.007)
    assert by_name["decisions.cpu-p99"].value == pytest.approx(3.5)
    assert by_name["decisions.signed-rate"].value == pytest.approx(2 / 0.016)
    assert by_name["decisions.p50"].value == pytest.approx(4.0)
    assert by_name["decisions.p99"].value == by_name["decisions.max"].value == pytest.approx(7.0)
    assert by_name["decisions.placement"].value == pytest.approx(1.0)
    assert by_name["decisions.admission"].value == pytest.approx(2.0)
    assert by_name["decisions.learning"].value == pytest.approx(6.0)
    assert "3 holds in force; admitted 6" in by_name["decisions.rate"].detail


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_quantiles_by_nearest_rank(share: float, expected: int) -> None:
    assert quantile(range(1, 101), share) == expected


def test_the_document_says_what_it_was_made_from(tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    small = ["--nodes", "16", "--sessions", "100", "--count", "20", "--repeats", "2"]
    answer = CliRunner().invoke(app, [*small, "--json", str(path)])
    content = json.loads(path.read_text())
    assert content["nodes"] == 16
    assert content["sessions"] == 100
    assert content["comparable"] is False
    assert content["machine"]["cores"] > 0
    missed = [row["name"] for row in content["rows"] if row["ok"] is False]
    assert answer.exit_code == (1 if missed else 0)
    assert CliRunner().invoke(app, ["--nodes", "8", "--sessions", "200"]).exit_code == 2
