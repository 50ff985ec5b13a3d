"""Cores of a local cluster's engines: each has its own, or nobody is bound."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.cli.cores import share_out, told
from worldline.cli.parts import Addresses, ClusterOptions
from worldline.errors import InvalidInput

TWO_SOCKETS = {0: frozenset(range(8)), 1: frozenset(range(8, 16))}
ALL = frozenset(range(16))


def test_engines_spread_over_the_nodes() -> None:
    assert share_out(ALL, TWO_SOCKETS, 2, 3) == (frozenset(range(4)), frozenset(range(8, 12)))


def test_two_cores_are_not_enough_for_anybody() -> None:
    few = frozenset({0, 1})
    assert share_out(few, {0: few}, 2, 1) == ()
    assert "with 7 each" in told((), 2, 1, 2)
    assert "2 CPUs of its own" in told((few,), 1, 1, 16)


def test_an_engine_is_never_split_over_two_nodes() -> None:
    nodes = {0: frozenset({0, 1, 2}), 1: frozenset({3, 4, 5})}
    assert share_out(frozenset(range(6)), nodes, 1, 3) == ()


def test_a_machine_that_says_nothing_of_nodes_has_one() -> None:
    assert share_out(frozenset({4, 5, 6, 7}), {}, 1, 1) == (frozenset({4, 5}),)


@given(
    nodes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    forbidden=st.frozensets(st.integers(0, 47), max_size=20),
    engines=st.integers(1, 8),
    threads=st.integers(1, 6),
)
def test_shares_are_whole_allowed_near_and_nobody_elses(
    nodes: list[int], forbidden: frozenset[int], engines: int, threads: int
) -> None:
    cpus_of, first = {}, 0
    for node, size in enumerate(nodes):
        cpus_of[node] = frozenset(range(first, first + size))
        first += size
    allowed = frozenset(range(first)) - forbidden
    shares = share_out(allowed, cpus_of, engines, threads)
    assert len(shares) in (0, engines)
    for share in shares:
        assert len(share) == threads + 1
        assert share <= allowed
        assert sum(bool(share & cpus) for cpus in cpus_of.values()) == 1
    assert not any(one & other for one, other in combinations(shares, 2))
    if shares:
        assert len(allowed) - sum(map(len, shares)) > engines


def test_each_engine_is_told_its_own() -> None:
    options = ClusterOptions(nodes=2, cores=(frozenset({0, 1}), frozenset({4, 6})))
    specs = [options.engine_spec(Addresses(), f"node-{number}") for number in (1, 2)]
    assert [spec.variables["cores"] for spec in specs] == ["0-1", "4,6"]
    plain = ClusterOptions(nodes=1).engine_spec(Addresses(), "node-1")
    assert "cores" not in plain.variables
    with pytest.raises(InvalidInput) as caught:
        ClusterOptions(nodes=2, cores=(frozenset({0}),))
    assert caught.value.field == "cores"
