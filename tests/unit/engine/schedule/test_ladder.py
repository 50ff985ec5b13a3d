"""Ladder: the highest rung that fits, never below the floor, never too many in a row."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.schedule.guard import Guard
from services.engine.schedule.ladder import (
    Firm,
    Ladder,
    QualityHistory,
    Steps,
    Why,
    choose_steps,
)
from worldline.errors import InvalidInput

EXACT = Guard(overrun=0.0, handover_s=0.0)
MG2 = Ladder(full_steps=3, floor_steps=2)

ladders = st.integers(1, 8).flatmap(
    lambda full: st.builds(
        Ladder,
        full_steps=st.just(full),
        floor_steps=st.integers(1, full),
        context_quanta=st.integers(0, 2),
    )
)
slacks = st.one_of(st.floats(-5, 5), st.just(math.inf))


@pytest.mark.parametrize(
    ("slack_s", "quantum_s", "expected"),
    [
        (0.4, 0.0939, Steps(3, False, False, Why.FITS)),
        (0.4, 0.1005, Steps(2, True, False, Why.DEGRADED_TO_FIT)),
        (0.4, 0.15, Steps(2, True, True, Why.FLOOR_TOO_LATE)),
        (math.inf, 0.15, Steps(3, False, False, Why.NO_DEADLINE)),
        (0.4, 0.0, Steps(3, False, False, Why.NOT_MEASURED)),
    ],
)
def test_rungs(slack_s: float, quantum_s: float, expected: Steps) -> None:
    assert choose_steps(MG2, slack_s, quantum_s, guard=EXACT) == expected


def test_a_contract_without_a_lower_floor_is_late_and_not_degraded() -> None:
    whole = Ladder(3, 3)
    assert choose_steps(whole, 0.1, 0.1, guard=EXACT) == Steps(3, False, True, Why.FLOOR_TOO_LATE)
    given_away = choose_steps(whole, 9.0, 0.1, guard=EXACT, give_to_bulk=True)
    assert given_away == Steps(3, False, False, Why.FITS), "there is nothing to give"


def test_what_is_given_to_bulk_says_so() -> None:
    given_away = choose_steps(MG2, 9.0, 0.1, guard=EXACT, give_to_bulk=True)
    assert given_away == Steps(2, True, False, Why.DEGRADED_FOR_BULK)


def test_at_the_cap_a_block_is_whole_and_late() -> None:
    history = QualityHistory(Firm.consecutive(2))
    chosen = []
    for _ in range(6):
        steps = choose_steps(MG2, 0.31, 0.1, guard=EXACT, history=history)
        history = history.after(steps.degraded)
        chosen.append((steps.steps, steps.late, steps.why))
    low, whole = (2, False, Why.DEGRADED_TO_FIT), (3, True, Why.FIRM_TOO_LATE)
    assert chosen == [low, low, whole, low, low, whole]


@given(ladders, slacks, st.floats(0, 1), st.floats(0, 0.5))
def test_the_highest_rung_that_fits(
    ladder: Ladder, slack_s: float, quantum_s: float, overrun: float
) -> None:
    guard = Guard(overrun)
    chosen = choose_steps(ladder, slack_s, quantum_s, guard=guard)
    assert ladder.floor_steps <= chosen.steps <= ladder.full_steps
    assert chosen.degraded == (chosen.steps < ladder.full_steps)
    fits = guard.bound_s(ladder.block_s(chosen.steps, quantum_s)) <= slack_s
    assert chosen.late == (not fits)
    for higher in range(chosen.steps + 1, ladder.full_steps + 1):
        assert guard.bound_s(ladder.block_s(higher, quantum_s)) > slack_s
    if chosen.late:
        assert chosen.steps == ladder.floor_steps


@given(
    window=st.integers(1, 8),
    full_min=st.integers(0, 8),
    wishes=st.lists(slacks, max_size=60),
    give=st.booleans(),
)
def test_firm_holds_in_every_window(
    window: int, full_min: int, wishes: list[float], give: bool
) -> None:
    firm = Firm(min(full_min, window), window)
    history, degraded = QualityHistory(firm), []
    for slack_s in wishes:
        steps = choose_steps(MG2, slack_s, 0.1, guard=EXACT, history=history, give_to_bulk=give)
        refused = not history.may_degrade
        assert not (refused and steps.degraded)
        if refused and slack_s < 0.4:
            assert steps == Steps(3, False, True, Why.FIRM_TOO_LATE)
        history = history.after(steps.degraded)
        degraded.append(steps.degraded)
    for start in range(len(degraded) - window + 1):
        assert degraded[start : start + window].count(False) >= firm.full_min


@given(st.integers(1, 6), st.integers(1, 40))
def test_consecutive_is_the_longest_run(degraded_max: int, blocks: int) -> None:
    history, run, longest = QualityHistory(Firm.consecutive(degraded_max)), 0, 0
    for _ in range(blocks):
        degraded = history.may_degrade
        history = history.after(degraded)
        run = run + 1 if degraded else 0
        longest = max(longest, run)
    assert longest == min(degraded_max, blocks)


def test_no_cap_forbids_nothing() -> None:
    history = QualityHistory(Firm.consecutive(0))
    for _ in range(50):
        assert history.may_degrade
        history = history.after(True)


@given(ladders, st.floats(0, 3), st.floats(0, 1))
def test_kept_is_what_a_session_gets_alone(
    ladder: Ladder, period_s: float, quantum_s: float
) -> None:
    kept = ladder.kept_steps(period_s, quantum_s, EXACT)
    slack_s = period_s if period_s > 0 else math.inf
    assert kept == choose_steps(ladder, slack_s, quantum_s, guard=EXACT).steps


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Ladder(3, 4), "floor_steps"),
        (lambda: Ladder(3, 0), "floor_steps"),
        (lambda: Ladder(3, 1, -1), "context_quanta"),
        (lambda: Firm(3, 2), "full_min"),
        (lambda: Firm(0, 0), "full_min"),
    ],
)
def test_what_cannot_be(make: object, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.field == field
