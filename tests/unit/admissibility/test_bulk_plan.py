"""Bulk plans: matchings, their number, and makespans that keep their bounds."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.admissibility.bulk.demand import Demand
from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan, Discipline, plan_bulk
from worldline.admissibility.condition import PathCost
from worldline.errors import InvalidInput

from .bulk_builders import BYTE_A_MS, Pair, build, carry_out, pairs

sizes = st.lists(st.sampled_from([1, 2, 3, 10, 100]), min_size=1, max_size=7)
#: 1.67 GB over 100 Gb/s with a set-up.
STATE_BYTES, COST = 1_670_000_000, PathCost(rate_bytes_per_s=11.8e9, setup_ms=5)
SOLO_MS = COST.t_migrate_ms(STATE_BYTES)


def _planned(ends: list[Pair], size_list: list[int]) -> tuple[list[BulkMove], BulkPlan]:
    moves = build(ends, size_list)
    return moves, plan_bulk(moves, BYTE_A_MS)


def _size_ms(move: BulkMove) -> float:
    return float(move.state_bytes)


@given(pairs(), sizes)
def test_every_move_is_in_one_round_and_rounds_are_matchings(
    ends: list[Pair], size_list: list[int]
) -> None:
    moves, plan = _planned(ends, size_list)
    assert sorted(move.move_id for move in plan.moves) == [move.move_id for move in moves]
    for one_round in plan.rounds:
        node_ids = [node_id for move in one_round for node_id in move.node_ids]
        assert len(set(node_ids)) == len(node_ids) > 0
    assert len(plan.rounds) <= Demand.of([move.node_ids for move in moves]).rounds_max


@given(pairs(), sizes, st.randoms(use_true_random=False))
def test_equal_input_in_any_order_gives_the_same_plan(
    ends: list[Pair], size_list: list[int], draw: random.Random
) -> None:
    moves, plan = _planned(ends, size_list)
    draw.shuffle(moves)
    assert plan_bulk(moves, BYTE_A_MS) == plan


@given(pairs(), sizes)
def test_the_longest_comes_first(ends: list[Pair], size_list: list[int]) -> None:
    _, plan = _planned(ends, size_list)
    for one_round in plan.rounds:
        assert [-m.state_bytes for m in one_round] == sorted(-m.state_bytes for m in one_round)
    longest = [-one_round[0].state_bytes for one_round in plan.rounds]
    assert longest == sorted(longest)


@settings(deadline=None)
@given(pairs(), st.integers(0, 10), st.data())
def test_equal_moves_that_take_up_to_a_tenth_longer(
    ends: list[Pair], percent_max: int, data: st.DataObject
) -> None:
    """Rounds do not slip against each other: rounds x T_solo, and the same tenth."""
    plan = plan_bulk(build(ends, [STATE_BYTES]), COST)
    assert plan.discipline is Discipline.ROUNDS
    assert plan.makespan_ms_max == pytest.approx(len(plan.rounds) * SOLO_MS)
    slack = st.lists(st.integers(0, percent_max), min_size=len(ends), max_size=len(ends))
    took = dict(zip((move.move_id for move in plan.moves), data.draw(slack), strict=True))
    makespan_ms = carry_out(plan, lambda move: SOLO_MS * (1 + took[move.move_id] / 100))
    assert makespan_ms <= plan.makespan_ms_max * (1 + percent_max / 100) * (1 + 1e-9)


@settings(deadline=None)
@given(pairs(), sizes)
def test_unequal_moves_keep_the_bound(ends: list[Pair], size_list: list[int]) -> None:
    _, plan = _planned(ends, size_list)
    makespan_ms = carry_out(plan, _size_ms)
    assert plan.makespan_ms_min <= makespan_ms <= plan.makespan_ms_max
    assert plan.makespan_ms_max <= 2 * plan.makespan_ms_min


@settings(max_examples=50, deadline=None)
@given(pairs(nodes_max=5, moves_max=6), sizes)
def test_beside_the_optimal_makespan(ends: list[Pair], size_list: list[int]) -> None:
    moves, plan = _planned(ends, size_list)
    optimum_ms = min(map(_in_turn_ms, permutations(moves)))
    assert plan.makespan_ms_min <= optimum_ms <= carry_out(plan, _size_ms)
    assert carry_out(plan, _size_ms) <= 2 * optimum_ms


def _in_turn_ms(moves: tuple[BulkMove, ...]) -> float:
    """Each move once its nodes are done with those before it; one order of all is optimal."""
    free_ms: dict[str, float] = {}
    for move in moves:
        end_ms = max(free_ms.get(node, 0.0) for node in move.node_ids) + _size_ms(move)
        free_ms.update(dict.fromkeys(move.node_ids, end_ms))
    return max(free_ms.values(), default=0.0)


def test_one_node_drains_to_n_others() -> None:
    plan = plan_bulk(build([(0, 1 + index % 7) for index in range(40)], [STATE_BYTES]), COST)
    assert [len(one_round) for one_round in plan.rounds] == [1] * 40
    assert plan.makespan_ms_max == pytest.approx(plan.makespan_ms_min)


def test_half_a_fleet_drains_to_the_other_half() -> None:
    draw = random.Random(7)
    ends = [(draw.randrange(20), 20 + draw.randrange(20)) for _ in range(400)]
    plan = plan_bulk(build(ends, [STATE_BYTES]), COST)
    assert len(plan.rounds) == Demand.of([move.node_ids for move in plan.moves]).degree_max
    assert plan.makespan_ms_max == pytest.approx(plan.makespan_ms_min)


@pytest.mark.parametrize("nodes", [*range(2, 12), 30])
def test_all_to_all(nodes: int) -> None:
    """Both directions of every pair: full rounds, where an odd node out waits in each."""
    plan = plan_bulk(build(list(permutations(range(nodes), 2)), [STATE_BYTES]), COST)
    assert {len(one_round) for one_round in plan.rounds} == {nodes // 2}


def test_the_four_duplex_transfers_of_the_paper_take_two_rounds() -> None:
    plan = plan_bulk(build([(0, 1), (1, 2), (2, 3), (3, 0)], [STATE_BYTES]), COST)
    assert [len(one_round) for one_round in plan.rounds] == [2, 2]


@pytest.mark.parametrize(("cycles", "rounds"), [([4, 6], 2), ([3], 3), ([5, 2], 3), ([7, 3, 4], 3)])
def test_a_defragmentation_in_cycles(cycles: list[int], rounds: int) -> None:
    ends: list[Pair] = []
    for base, length in enumerate(cycles):
        ends += [(100 * base + i, 100 * base + (i + 1) % length) for i in range(length)]
    plan = plan_bulk(build(ends), BYTE_A_MS)
    assert len(plan.rounds) == rounds


def test_states_of_like_size_share_rounds() -> None:
    plan = plan_bulk(build([(0, 1), (2, 3), (0, 3), (2, 1)], [100, 100, 1, 1]), BYTE_A_MS)
    assert [[m.state_bytes for m in one] for one in plan.rounds] == [[100, 100], [1, 1]]
    assert plan.makespan_ms_max == 101


def test_nodes_with_few_large_and_many_small_states_are_listed() -> None:
    """Node k sends k states of 60/k: each needs 60 ms, but rounds would last 60, 30, 20, ..."""
    ends = [(k, 100 * k + index) for k in range(1, 7) for index in range(k)]
    plan = plan_bulk(build(ends, [60 // k for k, _ in ends]), BYTE_A_MS)
    assert plan.discipline is Discipline.LIST
    assert plan.makespan_ms_max == plan.makespan_ms_min == carry_out(plan, _size_ms) == 60


def test_nothing_to_move_is_a_plan() -> None:
    plan = plan_bulk([], BYTE_A_MS)
    assert (plan.rounds, plan.makespan_ms_max, plan.makespan_ms_min) == ((), 0, 0)
    assert carry_out(plan, _size_ms) == 0


def test_bad_moves_are_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        BulkMove("move", "node", "node", 1)
    assert caught.value.field == "target_node_id"
    with pytest.raises(InvalidInput) as caught:
        BulkMove("move", "node", "other", 0)
    assert caught.value.field == "state_bytes"
    move = BulkMove("move", "node", "other", 1)
    with pytest.raises(InvalidInput) as caught:
        plan_bulk([move, move], BYTE_A_MS)
    assert caught.value.field == "move_id"
