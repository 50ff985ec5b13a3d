"""Ring: an order of its own for every source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.placement.ring import Ring, distance, point_of, round_trip
from worldline.errors import InvariantBroken

names = st.text("abcdefgh0123456789-", min_size=1, max_size=12)


@given(st.sets(st.tuples(names, names), max_size=30), st.integers(1, 3), names)
def test_a_round_trip_meets_everybody_by_distance(
    engines: set[tuple[str, str]], count: int, source: str
) -> None:
    rings = [Ring() for _ in range(count)]
    for number, (node_id, engine_id) in enumerate(sorted(engines)):
        rings[number % count].add((point_of(node_id), node_id, engine_id))
    met = [stop[1:] for stop in round_trip(rings, point_of(source))]
    assert met == sorted(engines, key=lambda one: (distance(source, one[0]), *one))


def test_points_are_the_same_in_every_process() -> None:
    assert point_of("node-1") == 0x13F21C5F
    assert distance("node-1", "node-1") == 0


def test_only_what_is_on_it_comes_off_it() -> None:
    ring = Ring()
    stop = (point_of("n1"), "n1", "e1")
    ring.add(stop)
    ring.take(stop)
    assert len(ring) == 0
    with pytest.raises(InvariantBroken, match="e1 of n1"):
        ring.take(stop)
