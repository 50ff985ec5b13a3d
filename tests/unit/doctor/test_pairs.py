"""The order in which paths are measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worldline.doctor.pairs import ordered_pairs


@given(st.integers(0, 12))
def test_every_path_once_and_every_node_in_each_round(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    pairs = ordered_pairs(nodes)
    assert {*pairs} == {(a, b) for a in nodes for b in nodes if a != b}
    assert len(pairs) == count * max(0, count - 1)
    for start in range(0, len(pairs), count or 1):
        turn = pairs[start : start + count]
        assert {source for source, _ in turn} == {target for _, target in turn} == {*nodes}
