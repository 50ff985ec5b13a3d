"""Rates: values of rows from what contestants did, and what becomes of rows without them."""

from __future__ import annotations

import pytest

from bench.rates import FigureRow, RateRow, RatioRow, TimeRow, evaluate, needed
from bench.rounds import Series
from bench.row import RowSpec, at_least, at_most, below

OWN = {"ours"}
RATE = RateRow(RowSpec("x.ours", "GB/s", verified=True), "ours")
RATIO = RatioRow(RowSpec("x.ratio", "x", at_least(1.0)), "ours", ("one", "two"))


def test_a_row_names_everybody_it_needs() -> None:
    assert needed([RATE, RATIO]) == {"ours", "one", "two"}


def test_a_rate_is_the_payload_over_the_median() -> None:
    row = evaluate(RATE, {"ours": Series([0.5, 0.25, 9.0])}, 2_000_000_000, OWN)
    assert row.value == pytest.approx(4.0)
    assert row.repeats == 3
    assert row.ok is None


@pytest.mark.parametrize(("ours_s", "ok"), [(1.0, True), (2.0, True), (2.1, False)])
def test_a_ratio_is_held_against_the_best_of_the_others(ours_s: float, ok: bool) -> None:
    table = {"ours": Series([ours_s]), "one": Series([8.0]), "two": Series([2.0])}
    row = evaluate(RATIO, table, 1, OWN)
    assert row.value == pytest.approx(2.0 / ours_s)
    assert row.ok is ok
    assert "two" in row.detail


def test_times_are_milliseconds_and_their_ratio_is_the_other_way_round() -> None:
    table = {"ours": Series([0.006, 0.005, 0.007]), "one": Series([0.005])}
    time = evaluate(TimeRow(RowSpec("x.time", "ms", below(6.0)), "ours"), table, 1, OWN)
    assert time.value == pytest.approx(6.0)
    slower = RatioRow(RowSpec("x.slower", "x", at_most(1.15)), "ours", ("one",), of_times=True)
    row = evaluate(slower, table, 1, OWN)
    assert row.value == pytest.approx(1.2)
    assert row.ok is False


def test_a_figure_is_the_median_of_what_the_runs_said() -> None:
    series = Series([1.0, 1.0, 1.0], figures={"exposed_ms": [0.5, 9.0, 0.7]})
    spec = RowSpec("x.exposed", "ms", at_most(1.0))
    row = evaluate(FigureRow(spec, "ours", "exposed_ms"), {"ours": series}, 1, OWN)
    assert row.value == pytest.approx(0.7)
    assert (row.ok, row.repeats) == (True, 3)


def test_a_ratio_uses_the_others_that_are_there() -> None:
    table = {"ours": Series([1.0]), "one": Series([3.0]), "two": Series(skipped="missing")}
    assert evaluate(RATIO, table, 1, OWN).value == pytest.approx(3.0)


def test_a_ratio_without_the_others_is_skipped_not_invented() -> None:
    table = {"ours": Series([1.0]), "one": Series(skipped="gone"), "two": Series(failed="torn")}
    row = evaluate(RATIO, table, 1, OWN)
    assert (row.value, row.ok) == (None, None)
    assert row.skipped == "one: gone"


def test_a_peer_that_broke_is_skipped_but_our_own_failure_is_a_missed_bar() -> None:
    peer = RateRow(RowSpec("x.one", "GB/s"), "one")
    row = evaluate(peer, {"one": Series([1.0], failed="torn off")}, 1, OWN)
    assert row.skipped == "one: torn off"
    for needs_ours in (RATE, RATIO):
        table = {"ours": Series([1.0], failed="torn off"), "one": Series([1.0])}
        row = evaluate(needs_ours, {**table, "two": Series([1.0])}, 1, OWN)
        assert row.ok is False
        assert row.value is None
        assert "torn off" in row.detail
