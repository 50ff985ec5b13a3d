"""Ring: all nodes in a circle, in which each source sees the others from its own place. Pure.

Of receivers that are equally good each source prefers those that follow it, so that moves out of
different nodes go to different nodes, where one order for all would queue them at the same few.
Every node follows as many others as follow it. (Consistent hashing: Karger et al., STOC 1997.)
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import merge

from worldline.errors import InvariantBroken

#: Points are below this.
SPAN = 1 << 32

#: A point, the node there, and one of the node's engines.
Stop = tuple[int, str, str]


def point_of(node_id: str) -> int:
    """Where on the circle; the same in every process and at every time."""
    return zlib.crc32(node_id.encode())


def distance(source_node_id: str, node_id: str) -> int:
    """How far a node is from the source, going round; ties go by name."""
    return (point_of(node_id) - point_of(source_node_id)) % SPAN


class Ring:
    """Engines by their nodes' points."""

    def __init__(self) -> None:
        self._stops: list[Stop] = []

    def add(self, stop: Stop) -> None:
        """Put an engine on it."""
        insort(self._stops, stop)

    def take(self, stop: Stop) -> None:
        """Take an engine off it.

        Raises:
            InvariantBroken: it is not on it.
        """
        place = bisect_left(self._stops, stop)
        if self._stops[place : place + 1] != [stop]:
            raise InvariantBroken(f"{stop[2]} of {stop[1]} is not on the ring")
        del self._stops[place]

    def after(self, start: int) -> Iterator[Stop]:
        """Once round, from a point."""
        stops = self._stops
        first = bisect_left(stops, (start, "", ""))
        for place in range(first, len(stops)):
            yield stops[place]
        for place in range(first):
            yield stops[place]

    def __len__(self) -> int:
        return len(self._stops)


def round_trip(rings: Iterable[Ring], start: int) -> Iterator[Stop]:
    """The engines of all of them as they come, going round from a point; a node's together."""
    trips = [ring.after(start) for ring in rings if len(ring)]
    if len(trips) == 1:
        return trips[0]
    return merge(*trips, key=lambda stop: ((stop[0] - start) % SPAN, stop[1], stop[2]))
