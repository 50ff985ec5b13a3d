"""Suspicion: a path that was slower than charged makes the others from and to its nodes doubtful.

Paths are measured one by one, but a node's link is shared by all of its own: when it loses rate,
each of them would have to miss once to learn it. So one surprise is charged to all that share a
node with it, until each has been measured again; a reject that only this causes asks for a probe.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from worldline.admissibility.estimate import DOUBT_SHARE
from worldline.admissibility.path_rate import PathRate

#: What nothing has confirmed for so long was one slow move and no change.
SUSPICION_S = 60.0
#: As far as an outlier on the path itself is believed.
RATIO_MAX = 1.0 + DOUBT_SHARE
#: A path's two ends are suspected apart: a sender may be slow and its receivers not.
_End = tuple[str, str]


class _Suspected(NamedTuple):
    ratio: float
    at_s: float


class Suspicions:
    """By end of a path, how many times as long as believed a move took there; bounded."""

    def __init__(self, ends_max: int) -> None:
        self._ends_max = ends_max
        self._senders: dict[str, _Suspected] = {}
        self._receivers: dict[str, _Suspected] = {}
        #: Suspected longest ago first.
        self._order: OrderedDict[_End, dict[str, _Suspected]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def learn(self, pair: tuple[str, str], before: PathRate, after: PathRate) -> None:
        """Look at what one sample did to an estimate."""
        ratio = surprise(before, after)
        if ratio <= 1.0:
            return
        suspected = _Suspected(min(ratio, RATIO_MAX), after.updated_at_s)
        for kind, node_id, side in (
            ("out", pair[0], self._senders),
            ("in", pair[1], self._receivers),
        ):
            side[node_id] = suspected
            self._order[kind, node_id] = side
            self._order.move_to_end((kind, node_id))
            if len(self._order) > self._ends_max:
                (_, gone), other = self._order.popitem(last=False)
                del other[gone]

    def ratio(self, pair: tuple[str, str], measured_s: float, now_s: float) -> float:
        """How many times what is believed to charge for a path that was last measured then."""
        ratio = 1.0
        for one in (self._senders.get(pair[0]), self._receivers.get(pair[1])):
            if (
                one is not None
                and one.ratio > ratio
                and one.at_s > measured_s
                and now_s - one.at_s < SUSPICION_S
            ):
                ratio = one.ratio
        return ratio


def surprise(before: PathRate, after: PathRate) -> float:
    """How many times as long as believed the last sample took; 1 where it was no surprise.

    A sample beyond what was charged is remembered as an outlier, and the second of two begins the
    estimate anew.
    """
    if before.pace.mean <= 0 or after.pace_from_small != before.pace_from_small:
        return 1.0
    if after.pace is before.pace:  # a small transfer, which says nothing of the pace
        return 1.0
    outlier = after.pace.outlier
    if outlier is not None:
        return outlier.sample / before.pace.mean
    changed = after.pace.learned <= before.pace.learned
    return after.pace.mean / before.pace.mean if changed else 1.0
