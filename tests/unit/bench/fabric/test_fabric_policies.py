"""Policies: what each may see, the caps that it keeps, and what its moves come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fabric.cell import Cell
from bench.fabric.policies.believed import Believed
from bench.fabric.policies.oracle import Oracle
from bench.fabric.policies.policy import Admit, Done
from bench.fabric.policies.table import INCAST_AWARE, NAIVE, ORACLE, OURS, POLICIES
from bench.fabric.run import Outcome, Run
from bench.fabric.workload import MOVES, Workload, make_workload
from services.admission.core import Admission

CELL = Cell()
LOADS = st.floats(0.5, 5.0)
SEEDS = st.integers(0, 10**6)


def play(
    policy: str, load: float, seed: int, *, pinned: bool = False, cell: Cell = CELL
) -> Outcome:
    workload = make_workload(cell, load, seed, pinned=pinned)
    return Run(cell, workload, POLICIES[policy], seed).play()


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """How many of these spans of time overlap; the end is not in a span."""
    changes = sorted((at_s, step) for begin, end in spans for at_s, step in ((begin, 1), (end, -1)))
    most = now = 0
    for _, step in changes:
        now += step
        most = max(most, now)
    return most


def wires(done: Iterable[Done], end: str) -> list[list[tuple[float, float]]]:
    """Spans on the wire by sender (`source`) or receiver (`target`)."""
    by_node: dict[str, list[tuple[float, float]]] = {}
    for move in done:
        spans = by_node.setdefault(getattr(move, end), [])
        spans.append((move.wire_begun_s, move.wire_ended_s))
    return list(by_node.values())


@settings(max_examples=8, deadline=None)
@given(load=LOADS, seed=SEEDS, pinned=st.booleans(), lag_max_s=st.floats(0.0, 0.5))
def test_the_oracle_never_misses(load: float, seed: int, pinned: bool, lag_max_s: float) -> None:
    cell = dataclasses.replace(CELL, lag_max_s=lag_max_s)
    outcome = play(ORACLE, load, seed, pinned=pinned, cell=cell)
    assert outcome.done
    assert all(move.on_time for move in outcome.done)
    assert outcome.episodes == 0


def test_the_oracle_does_no_worse_than_what_it_is_told_of_and_no_better_than_its_bound() -> None:
    for seed in (1, 2):
        workload = make_workload(CELL, 2.0, seed)
        ours = Run(CELL, workload, POLICIES[OURS], seed).play()
        oracle = Oracle(CELL, workload, seed, known=ours.done)
        played = Run(CELL, workload, lambda *_, o=oracle: o, seed).play()
        assert sum(move.on_time for move in ours.done) <= len(played.done) <= oracle.bound


def test_a_wait_counts_and_the_lag_before_it_does_not() -> None:
    offer = make_workload(CELL, 1.0, 1).offers[0]
    begun = Done(offer, "n1", "n0", asked_s=1.0, wire_begun_s=1.25, wire_ended_s=1.39)
    assert begun.waited_s == pytest.approx(0.25)
    assert begun.frozen_s == pytest.approx(0.14)
    assert begun.on_time
    assert not dataclasses.replace(begun, wire_ended_s=1.41).on_time
    # Strict, as condition (1); these sums are exact in binary.
    half = dataclasses.replace(offer, horizon_s=0.5)
    late = dataclasses.replace(begun, offer=half, wire_ended_s=1.5)
    assert not late.on_time
    assert dataclasses.replace(late, wire_ended_s=1.4375).on_time


def test_ours_lets_moves_wait_and_the_papers_arms_do_not() -> None:
    assert max(move.waited_s for move in play(OURS, 2.0, 3).done) > 0.1
    for policy in (NAIVE, INCAST_AWARE, "accept-all"):
        assert all(move.waited_s == 0 for move in play(policy, 2.0, 3).done)


@settings(max_examples=10, deadline=None)
@given(load=LOADS, seed=SEEDS, pinned=st.booleans(), lag_max_s=st.floats(0.0, 0.5))
def test_the_real_core_keeps_its_caps_on_the_wire_whatever_the_lag(
    load: float, seed: int, pinned: bool, lag_max_s: float
) -> None:
    cell = dataclasses.replace(CELL, lag_max_s=lag_max_s)
    outcome = play(OURS, load, seed, pinned=pinned, cell=cell)
    assert outcome.done
    for end in ("source", "target"):
        assert max(map(most_at_once, wires(outcome.done, end))) == 1
    for move in outcome.done:
        assert move.wire_ended_s - move.asked_s < move.offer.horizon_s
    assert outcome.episodes == 0


@pytest.mark.parametrize(("policy", "fan_in_max"), [(NAIVE, 2), (INCAST_AWARE, 1)])
@pytest.mark.parametrize("load", [1.0, 4.0])
def test_the_papers_arms_keep_their_caps_as_they_count(
    policy: str, fan_in_max: int, load: float
) -> None:
    workload = make_workload(CELL, load, seed=3)
    controller = POLICIES[policy](CELL, workload, 3)
    decided: dict[str, list[tuple[float, float]]] = {}
    for offer in workload.offers:
        answer = controller.decide(offer, offer.offered_s)
        if isinstance(answer, Admit):
            # No move is over sooner than at the rate of a fast sender.
            least_s = offer.size_bytes / CELL.flow_bytes_per_s - 1e-9
            spans = decided.setdefault(answer.target, [])
            spans.append((offer.offered_s, offer.offered_s + least_s))
    assert max(map(most_at_once, decided.values())) == fan_in_max


def test_what_they_count_is_not_what_is_on_the_wire() -> None:
    """The paper's explanation of its misses: decisions are paced, wires are not."""
    outcome = play(INCAST_AWARE, 2.0, 3)
    assert max(map(most_at_once, wires(outcome.done, "target"))) > 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pinned", [False, True])
def test_every_offer_comes_to_exactly_one_end(policy: str, pinned: bool) -> None:
    outcome = play(policy, 2.0, 5, pinned=pinned)
    rejects = outcome.rejected.total() + outcome.rejected_later.total()
    assert len(outcome.done) + rejects == MOVES
    assert len({move.offer.move_id for move in outcome.done}) == len(outcome.done)
    for move in outcome.done:
        assert move.source != move.target
        assert move.source in move.offer.sources
        assert not pinned or len(move.offer.sources) == 1


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != ORACLE])
def test_only_the_oracle_sees_the_draws(policy: str) -> None:
    workload = make_workload(CELL, 2.0, seed=1)
    blind = Workload(workload.offers, {})
    seeing, unseeing = POLICIES[policy](CELL, workload, 1), POLICIES[policy](CELL, blind, 1)
    for offer in workload.offers:
        answer = seeing.decide(offer, offer.offered_s)
        assert answer == unseeing.decide(offer, offer.offered_s)


def test_ours_is_the_real_core_and_its_own_moves_teach_it() -> None:
    workload = make_workload(CELL, 1.0, seed=2)
    made = []

    def make(cell: Cell, workload: Workload, seed: int) -> object:
        made.append(POLICIES[OURS](cell, workload, seed))
        return made[-1]

    before = POLICIES[OURS](CELL, workload, 2).core.paths  # type: ignore[attr-defined]
    outcome = Run(CELL, workload, make, 2).play()  # type: ignore[arg-type]
    core = made[0].core
    assert type(core) is Admission
    assert len(core.holds) == 0
    assert core.holds_expired == 0
    learned = sum(path.samples for _, path in core.paths.sorted())
    probed = sum(path.samples for _, path in before.sorted())
    assert learned == probed + len(outcome.done)


def test_a_move_that_was_refused_its_wire_holds_nothing() -> None:
    cell = dataclasses.replace(CELL, lag_max_s=0.2)
    refused = 0
    for seed in range(12):
        run = Run(cell, make_workload(cell, 4.0, seed=seed), POLICIES[OURS], seed)
        refused += run.play().rejected_later.total()
        assert len(run.policy.core.holds) == 0  # type: ignore[attr-defined]
    assert refused > 0


def test_a_limiter_lets_through_no_more_than_its_rate() -> None:
    outcome = play("rate-limiter", 4.0, 1, cell=dataclasses.replace(CELL, lag_max_s=0.0))
    begun = sorted(move.wire_begun_s for move in outcome.done)
    saved = len(CELL.nodes)
    for first, last in zip(begun, begun[saved:], strict=False):
        assert last - first >= 1 / CELL.capacity_per_s - 1e-9
    assert outcome.rejected_later.total() > 0
    assert not outcome.rejected


def test_beliefs_end_at_their_predicted_time() -> None:
    believed = Believed()
    believed.add("n0", "n1", 2.0)
    believed.add("n0", "n2", 3.0)
    believed.forget_ended(2.0)
    assert believed.into() == {"n2": 1}
    assert believed.out_of() == {"n0": 1}
