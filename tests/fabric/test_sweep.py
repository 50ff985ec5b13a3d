"""Sweep: more and more moves are offered, over real links; who is admitted is on time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fabric.caps import overlaps
from tests.fabric.cell import ShapedCell
from tests.fabric.desk import ASKED
from tests.fabric.order import SweepOrder
from tests.fabric.replayed import replay
from tests.fabric.run import run
from tests.fabric.simulated import simulate
from worldline.verdict import RejectReason

pytestmark = pytest.mark.timeout(240)

CELL = ShapedCell()
MOVES = 24
LOADS = (1.0, 1.4, 2.0, 4.0)
#: Verdicts that the pure core must say again. It is asked at a time that is a few milliseconds
#: uncertain, and some verdicts hang on less.
AGREEMENT_MIN = 0.95
#: By how much of a load the simulation may get more or fewer moves through. After one verdict that
#: falls otherwise everything behind it has another history.
MOVED_DIFFERENCE_MAX = 0.2

Result = dict[str, Any]


@pytest.fixture(scope="module")
def result(fabric_possible: None) -> Result:
    """Everything is offered once."""
    return run(SweepOrder(loads=LOADS, moves=MOVES), 210.0, CELL)


def moves_of(result: Result) -> list[dict[str, Any]]:
    """All offers of all loads."""
    return [move for load in result["loads"] for move in load["moves"]]


def test_whoever_is_admitted_is_on_time_at_every_load(result: Result) -> None:
    """Later than its horizon by less than this machine had no core to give is not the wire's doing:
    nothing of that where nothing else runs, and the result notes it.
    """
    admitted = [move for move in moves_of(result) if move["verdict"] == "admitted"]
    assert [move["failure"] for move in admitted if move["failure"]] == []
    late = [
        {name: move[name] for name in ("move_id", "took_ms", "starved_ms", "total_ms", "numbers")}
        for move in admitted
        if move["took_ms"] - move["starved_ms"] >= CELL.horizon_ms
    ]
    assert late == []


def test_the_cell_carries_moves_at_every_load_and_sheds_what_it_cannot(result: Result) -> None:
    first, *_, last = result["loads"]
    assert all(load["on_time"] for load in result["loads"])
    assert first["on_time"] >= MOVES / 3
    assert last["rejected"] + last["withdrawn"] >= MOVES / 3


def test_whoever_is_not_is_told_why_and_when_to_come_again(result: Result) -> None:
    rejected = [move for move in moves_of(result) if move["verdict"] != "admitted"]
    assert {move["verdict"] for move in rejected} <= {reason.name for reason in RejectReason}
    for move in rejected:
        assert move["explanation"], move
        assert move["retry_after_ms"] > 0, move
    # Who is withdrawn at its wire is told the numbers in words.
    decided = [move for move in rejected if move["verdict"] != "WIRE_TOO_LATE"]
    assert all(move["numbers"] for move in decided)


def test_no_cap_is_ever_exceeded(result: Result) -> None:
    assert [overlaps(load["moves"]) for load in result["loads"]] == [[]] * len(LOADS)


def test_nothing_is_left_behind(result: Result) -> None:
    assert [load["left_behind"] for load in result["loads"]] == [[]] * len(LOADS)
    asked = {entry["move_id"] for entry in result["log"] if entry["verdict"] == "admitted"}
    ended = {entry["move_id"] for entry in result["log"] if entry["what"] != ASKED}
    assert asked == ended


def test_the_pure_core_says_the_same(result: Result) -> None:
    again = replay(result)
    assert again.compared >= MOVES * len(LOADS)
    assert again.agreement >= AGREEMENT_MIN, again.differing


def test_the_simulated_fabric_gets_as_many_through_and_misses_none(result: Result) -> None:
    for simulated, load in zip(simulate(result, CELL), result["loads"], strict=True):
        assert simulated.missed == 0
        assert abs(simulated.on_time - load["on_time"]) <= MOVED_DIFFERENCE_MAX * MOVES, (
            simulated.load,
            simulated.on_time,
            load["on_time"],
        )
