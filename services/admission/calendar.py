"""Calendar: when shared resources are booked, and when all that a move needs is free together.

Every resource of a move (receiver, sender, the opposite direction, what verifies) is leased for
one and the same interval, or none is. Intervals are half open: one may begin as another ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """From `begin_s` on, until `end_s`."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long."""
        return self.end_s - self.begin_s

    def beginning(self, begin_s: float) -> Interval:
        """The same length from another begin."""
        return Interval(begin_s, begin_s + self.length_s)


class Resource(NamedTuple):
    """How many moves are booked on something shared, and when they use all of it."""

    booked: int
    #: One after another: whoever wants it then as well has to wait.
    full: Sequence[Interval]


#: Nobody uses it.
FREE = Resource(0, ())


def resource(planned: Sequence[tuple[Interval, float]], capacity: int, now_s: float) -> Resource:
    """What at most `capacity` moves use at once; `planned` as `settled` takes it."""
    if len(planned) < capacity:
        return Resource(len(planned), ())
    booked = settled(planned, capacity, now_s)
    return Resource(len(planned), booked if capacity == 1 else _full(booked, capacity))


def earliest_begin_s(resources: Iterable[Resource], length_s: float, not_before_s: float) -> float:
    """The first moment from which every resource is free for that long.

    A later one than `not_before_s` is always an end of some booking: between ends nothing becomes
    free.
    """
    full = [interval for one in resources for interval in one.full]
    if not full:
        return not_before_s
    begin_s = not_before_s
    for taken_s, free_s in sorted(full):
        if taken_s >= begin_s + length_s:
            break
        if free_s > begin_s:
            begin_s = free_s
    return begin_s


def settled(
    planned: Iterable[tuple[Interval, float]], capacity: int, now_s: float
) -> list[Interval]:
    """What is booked, as it will really be; `planned` has each interval's latest end beside it.

    A move that is late may be late by as much again, up to its limit, and whoever was planned
    behind it on the same resource begins later.
    """
    intervals: list[Interval] = []
    ends: list[float] = []
    for interval, limit_s in sorted(planned):
        begin_s, end_s = interval
        if len(ends) >= capacity and begin_s < ends[0]:
            interval = interval.beginning(ends[0])
        elif end_s <= now_s:
            interval = Interval(begin_s, max(now_s, min(now_s + (now_s - end_s), limit_s)))
        if len(ends) >= capacity:
            heapq.heapreplace(ends, interval.end_s)
        else:
            heapq.heappush(ends, interval.end_s)
        intervals.append(interval)
    return intervals


def _full(booked: Iterable[Interval], capacity: int) -> list[Interval]:
    """When at least `capacity` of those overlap."""
    # An end before a begin at the same moment: one may begin as another ends.
    changes = sorted(change for one in booked for change in ((one.begin_s, 1), (one.end_s, -1)))
    full: list[Interval] = []
    overlapping, since_s = 0, 0.0
    for at_s, change in changes:
        before, overlapping = overlapping, overlapping + change
        if before < capacity <= overlapping:
            since_s = at_s
        elif overlapping < capacity <= before and since_s < at_s:
            full.append(Interval(since_s, at_s))
    return full
