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
        #: Suspected longest ago first.
        self._suspected: OrderedDict[_End, _Suspected] = OrderedDict()

    def __len__(self) -> int:
        return len(self._suspected)

    def learn(self, pair: tuple[str, str], before: PathRate, after: PathRate) -> None:
        """Look at what one sample did to an estimate."""
        ratio = surprise(before, after)
        if ratio <= 1.0:
            return
        for end in _ends(pair):
            self._suspected[end] = _Suspected(min(ratio, RATIO_MAX), after.updated_at_s)
            self._suspected.move_to_end(end)
            if len(self._suspected) > self._ends_max:
                self._suspected.popitem(last=False)

    def ratio(self, pair: tuple[str, str], measured_s: float, now_s: float) -> float:
        """How many times what is believed to charge for a path that was last measured then."""
        found = 1.0
        for end in _ends(pair):
            one = self._suspected.get(end)
            if (
                one is not None
                and one.ratio > found
                and one.at_s > measured_s
                and now_s - one.at_s < SUSPICION_S
            ):
                found = one.ratio
        return found


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


def _ends(pair: tuple[str, str]) -> tuple[_End, _End]:
    return ("out", pair[0]), ("in", pair[1])
