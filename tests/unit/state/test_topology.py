"""No two trees of another structure have one topology hash, even where no leaf shows it."""

from __future__ import annotations

import itertools
from dataclasses import make_dataclass

import torch
from hypothesis import given, settings

from tests.unit.state.strategies import trees
from worldline.state.layout import Layout
from worldline.state.tree import plan

One = make_dataclass("One", ["a", "b"])
Other = make_dataclass("Other", ["a", "b"])
Renamed = make_dataclass("One", ["a", "c"])
for cls in (One, Other, Renamed):
    cls.__module__ = __name__

STRUCTURES = [
    [],
    (),
    {},
    [[]],
    [()],
    ([],),
    [{}],
    [[], []],
    [[[]]],
    {"a": []},
    {"b": []},
    {"a": ()},
    {0: []},
    {"0": []},
    {-1: []},
    {"a": [], "b": []},
    {"b": [], "a": []},
    One([], []),
    Other([], []),
    Renamed([], []),
    [1],
    (1,),
    {"a": 1},
    One(1, 1),
    Other(1, 1),
    [torch.zeros(1)],
    (torch.zeros(1),),
    [torch.zeros(1), 1],
    [1, torch.zeros(1)],
    torch.zeros(1),
    1,
]


def test_every_structure_has_its_own_hash() -> None:
    for one, other in itertools.combinations(STRUCTURES, 2):
        assert plan(one).topology_hash != plan(other).topology_hash, (one, other)


@given(trees(), trees())
@settings(max_examples=100, deadline=None)
def test_equal_hashes_mean_equal_topologies(one: object, other: object) -> None:
    def bare(layout: Layout) -> Layout:
        return layout.with_scalars(dict.fromkeys(layout.scalar_values()))

    first, second = bare(plan(one)), bare(plan(other))
    assert (first.topology_hash == second.topology_hash) == (first == second)


def test_the_encoding_does_not_drift() -> None:
    """Nodes of two builds must agree; a change of the encoding needs a new layout version."""
    tree = {"k": [torch.zeros(2, 3, dtype=torch.bfloat16), (True, None)], 7: torch.zeros(0)}
    pinned = "771289f2b81b064322bad614d079e0f884d1978248d15985afd654d96abc7879"
    assert plan(tree).topology_hash.hex() == pinned
