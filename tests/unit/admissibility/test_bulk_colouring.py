"""Edge colouring: proper, within the bounds of Koenig, Vizing and Shannon, beside brute force."""

from __future__ import annotations

import random
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings

from worldline.admissibility.bulk import multifan
from worldline.admissibility.bulk.demand import Demand
from worldline.admissibility.bulk.edge_colouring import colour_edges
from worldline.admissibility.bulk.partial_colouring import PartialColouring
from worldline.errors import InvariantBroken

from .bulk_builders import Pair, pairs


def _demand(ends: list[Pair]) -> Demand:
    return Demand(1 + max((max(pair) for pair in ends), default=-1), tuple(ends))


def _check(ends: list[Pair]) -> int:
    """Colours used, once they are known to be proper and within the bound."""
    demand = _demand(ends)
    colours = colour_edges(demand)
    assert len(colours) == len(ends)
    used = [(node, colour) for pair, colour in zip(ends, colours, strict=True) for node in pair]
    assert len(set(used)) == len(used)
    assert max(colours, default=-1) + 1 <= demand.rounds_max
    assert len(set(colours)) >= demand.degree_max
    return len(set(colours))


def _fits(ends: list[Pair], colours: int, at: tuple[frozenset[int], ...] = ()) -> bool:
    """Whether so many colours do, by trying all; `at` is the nodes of each colour so far."""
    if not ends:
        return True
    pair, rest = frozenset(ends[0]), ends[1:]
    tries = [index for index, nodes in enumerate(at) if not nodes & pair]
    if any(_fits(rest, colours, (*at[:i], at[i] | pair, *at[i + 1 :])) for i in tries):
        return True
    return len(at) < colours and _fits(rest, colours, (*at, pair))


def _complete(nodes: int, multiplicity: int) -> list[Pair]:
    return list(combinations(range(nodes), 2)) * multiplicity


@given(pairs())
def test_any_demand(ends: list[Pair]) -> None:
    _check(ends)


@given(pairs(nodes_max=3, moves_max=30))
def test_fat_triangles(ends: list[Pair]) -> None:
    # Of three nodes any two pairs share one: each move is a round of its own.
    assert _check(ends) == len(ends)


@given(pairs(nodes_max=10, moves_max=60))
def test_two_sides_take_the_degree_and_no_more(ends: list[Pair]) -> None:
    sides = [(source, 10 + target) for source, target in ends]
    assert _demand(sides).bipartite
    assert _check(sides) == _demand(sides).degree_max


@settings(max_examples=200, deadline=None)
@given(pairs(nodes_max=5, moves_max=9))
def test_never_two_above_the_optimum(ends: list[Pair]) -> None:
    used = _check(ends)
    assert used < 2 or not _fits(ends, used - 2)


def test_nearly_always_the_optimum() -> None:
    """Not guaranteed: about one small demand in a thousand takes a round too many."""
    draw = random.Random(3)
    above = 0
    for _ in range(1_000):
        nodes = range(draw.randrange(3, 7))
        ends = [(one, other) for one, other in (draw.sample(nodes, 2) for _ in range(9))]
        above += _fits(ends, _check(ends) - 1)
    assert above <= 5


@pytest.mark.parametrize("multiplicity", [1, 2, 5])
@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 9])
def test_complete_demand(nodes: int, multiplicity: int) -> None:
    ends = _complete(nodes, multiplicity)
    random.Random(nodes).shuffle(ends)
    least = -(-len(ends) // (nodes // 2))  # a matching has at most half the nodes
    assert least <= _check(ends) <= _demand(ends).rounds_max


def test_dense_random_demand_is_within_one_of_the_degree() -> None:
    draw = random.Random(1)
    ends = [(one, other) for one, other in permutations(range(40), 2) if draw.random() < 0.5]
    assert _check(ends) <= _demand(ends).degree_max + 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("nodes", "multiplicity"), [(15, 1), (31, 1), (7, 3)])
def test_the_bounds_need_no_chain_that_is_only_tried(
    monkeypatch: pytest.MonkeyPatch, nodes: int, multiplicity: int, seed: int
) -> None:
    """An odd node out in every round makes colours scarce."""
    monkeypatch.setattr(multifan, "CHAINS_TRIED_MAX", 0)
    ends = _complete(nodes, multiplicity)
    random.Random(seed).shuffle(ends)
    _check(ends)


def test_koenigs_step_alone_colours_two_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multifan.Multifan, "extend", lambda fan: False)
    monkeypatch.setattr(multifan, "CHAINS_TRIED_MAX", 0)
    ends = [(one, 9 + other) for one in range(9) for other in range(9)] * 2
    random.Random(5).shuffle(ends)
    assert _check(ends) == 18


def test_a_fan_shifts_colours_to_its_first_edge() -> None:
    """Case (a): 0-2 takes the colour 1 that 0 and 2 miss, and hands its 0 to 0-1."""
    table = PartialColouring(4, [(0, 1), (0, 2), (1, 3)], 2)
    table.colour(1, 0)
    table.colour(2, 1)
    assert multifan.Multifan(table, 0, 0).extend()
    assert table.colour_of == [0, 1, 1]


@pytest.mark.parametrize(
    ("ends", "bipartite", "rounds_max"),
    [
        ([], True, 0),
        ([(0, 1)], True, 1),
        ([(0, 1), (1, 0)], True, 2),
        ([(0, 1), (1, 2), (2, 0)], False, 3),
        (_complete(3, 2), False, 6),  # D = 4, mu = 2: Vizing and Shannon agree
        (_complete(3, 3), False, 9),  # D = 6, mu = 3
        (_complete(5, 1), False, 5),  # D = 4, mu = 1: Vizing's is the lesser
        ([*_complete(3, 1), (0, 1), (0, 1)], False, 6),  # D = 4, mu = 3: Shannon's is the lesser
        ([(0, 1), (1, 2), (2, 3), (3, 0)], True, 2),
        ([(0, 1), (2, 3), (3, 4), (4, 2)], False, 3),  # the odd cycle is not in the first part
    ],
)
def test_bounds_by_hand(ends: list[Pair], bipartite: bool, rounds_max: int) -> None:
    assert _demand(ends).bipartite == bipartite
    assert _demand(ends).rounds_max == rounds_max


def test_a_table_refuses_what_is_no_colouring() -> None:
    table = PartialColouring(3, [(0, 1), (1, 2)], 1)
    table.colour(0, 0)
    for edge in (0, 1):
        with pytest.raises(InvariantBroken):
            table.colour(edge, 0)
    with pytest.raises(InvariantBroken):
        table.uncolour(1)
