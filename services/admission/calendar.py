"""Calendar: when shared resources are booked, and when all that a move needs is free together.

Every resource of a move (receiver, sender, the opposite direction, what verifies) is leased for
one and the same interval, or none is. Intervals are half open: one may begin as another ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worldline.errors import InvariantBroken


@dataclass(frozen=True, slots=True, order=True)
class Interval:
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


@dataclass(frozen=True, slots=True)
class Resource:
    """What at most `capacity` moves use at once, and for when it is booked."""

    capacity: int
    booked: Sequence[Interval]

    def free(self, wanted: Interval) -> bool:
        """Whether one more fits for the whole of that interval.

        How many overlap changes upwards only where a booking begins, so that it is enough to look
        at the wanted begin and at every begin inside.
        """
        if len(self.booked) < self.capacity:
            return True
        overlapping = [
            one for one in self.booked if one.begin_s < wanted.end_s and one.end_s > wanted.begin_s
        ]
        if len(overlapping) < self.capacity:
            return True
        begins = [wanted.begin_s, *(one.begin_s for one in overlapping)]
        return all(
            sum(one.begin_s <= at_s < one.end_s for one in overlapping) < self.capacity
            for at_s in begins
            if at_s >= wanted.begin_s
        )


def earliest_begin_s(resources: Iterable[Resource], length_s: float, not_before_s: float) -> float:
    """The first moment from which every resource is free for that long.

    A later begin than `not_before_s` is always an end of some booking: between ends nothing
    becomes free.
    """
    crowded = [one for one in resources if len(one.booked) >= one.capacity]
    if not crowded:
        return not_before_s
    ends = {one.end_s for resource in crowded for one in resource.booked}
    later = sorted(end_s for end_s in ends if end_s > not_before_s)
    for begin_s in (not_before_s, *later):  # after the last of them everything is free
        wanted = Interval(begin_s, begin_s + length_s)
        if all(resource.free(wanted) for resource in crowded):
            return begin_s
    raise InvariantBroken("nothing is free after the last booking has ended")


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
        begin_s, end_s = interval.begin_s, interval.end_s
        if len(ends) >= capacity and begin_s < ends[0]:
            begin_s, end_s = ends[0], ends[0] + interval.length_s
        elif end_s <= now_s:
            end_s = max(now_s, min(now_s + (now_s - end_s), limit_s))
        if len(ends) >= capacity:
            heapq.heapreplace(ends, end_s)
        else:
            heapq.heappush(ends, end_s)
        intervals.append(Interval(begin_s, end_s))
    return intervals
