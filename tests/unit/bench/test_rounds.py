"""Rounds: the order of turns, who counts, and that everybody is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.contestant import Contestant, Failed, Skipped
from bench.rounds import Series, best, race, turns


class Runner(Contestant):
    def __init__(self, name: str, log: list[str], run: Callable[[int], float]) -> None:
        super().__init__(name)
        self.note = "by hand"
        self._log = log
        self._run = run
        self._runs = 0
        self.prepare_error: Exception | None = None

    def prepare(self) -> None:
        self._log.append(f"{self.name} prepare")
        if self.prepare_error is not None:
            raise self.prepare_error

    def run(self) -> float:
        self._log.append(f"{self.name} run")
        self._runs += 1
        self.figures = {"runs": float(self._runs)}
        return self._run(self._runs)

    def close(self) -> None:
        self._log.append(f"{self.name} close")


def silent(_text: str) -> None:
    pass


def test_everybody_has_a_turn_in_each_round_in_the_same_order() -> None:
    assert list(turns(["a", "b", "c"], 2)) == [
        (0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "b"), (1, "c"),
    ]  # fmt: skip


def test_runs_are_interleaved_and_nobody_is_left_open() -> None:
    log: list[str] = []
    table = race([Runner("a", log, float), Runner("b", log, lambda _: 7.0)], 3, silent)
    assert [line for line in log if line.endswith("run")] == ["a run", "b run"] * 3
    assert log[-2:] == ["a close", "b close"]
    assert table["a"].seconds == [1.0, 2.0, 3.0]
    assert table["a"].median_s == 2.0
    assert "by hand" in table["a"].spread()
    assert table["a"].figures == {"runs": [1.0, 2.0, 3.0]}
    assert table["b"].rate_gb_per_s(14_000_000_000) == pytest.approx(2.0)


def test_who_breaks_is_out_and_its_earlier_times_do_not_count() -> None:
    def breaks_in_the_second(run: int) -> float:
        if run == 2:
            raise Failed("torn off")
        return 1.0

    log: list[str] = []
    table = race([Runner("a", log, breaks_in_the_second), Runner("b", log, float)], 4, silent)
    assert log.count("a run") == 2
    assert table["a"].failed == "torn off"
    assert not table["a"].complete
    assert len(table["b"].seconds) == 4
    assert "a close" in log


def test_a_slow_one_sits_out_the_later_rounds() -> None:
    log: list[str] = []
    slow = Runner("a", log, float)
    slow.runs_max = 2
    table = race([slow, Runner("b", log, float)], 4, silent)
    assert [len(table[name].seconds) for name in "ab"] == [2, 4]
    assert log[2:6] == ["a run", "b run", "a run", "b run"]


def test_who_cannot_run_is_skipped_with_the_reason() -> None:
    log: list[str] = []
    missing = Runner("a", log, float)
    missing.prepare_error = Skipped("not installed")
    told: list[str] = []
    table = race([missing, Runner("b", log, float)], 1, told.append)
    assert table["a"].skipped == "not installed"
    assert "a run" not in log
    assert any("not installed" in line for line in told)


def test_everybody_is_closed_when_the_race_is_interrupted() -> None:
    def interrupted(_run: int) -> float:
        raise KeyboardInterrupt

    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        race([Runner("a", log, float), Runner("b", log, interrupted)], 2, silent)
    assert log[-2:] == ["a close", "b close"]


def test_best_has_the_smallest_median_among_those_that_finished() -> None:
    table = {
        "slow": Series([3.0, 3.0]),
        "fast": Series([9.0, 1.0, 1.0]),
        "broken": Series([0.1], failed="torn off"),
    }
    assert best(table, ["slow", "fast", "broken", "absent"]) == "fast"
    assert best(table, ["broken"]) is None
