"""Wire forecast: when each of those that wait may expect its wire. Pure.

List scheduling (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 1969): as
soon as a wire is free it goes to the first in order that may use it by then. Who would get it too
late is refused rather than served, so it keeps nobody behind it waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from services.mover.wireask import WireAsk


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits; not before `ready_s` (monotonic seconds), whatever is free."""

    ask: WireAsk
    ready_s: float


def expected_end_s(began_s: float, wire_s: float, now_s: float) -> float:
    """When who holds a wire since `began_s` will give it back.

    As expected; who is overdue will take as much longer as it is late already.
    """
    end_s = began_s + wire_s
    return end_s if now_s <= end_s else now_s + (now_s - end_s)


def starts_s(
    waiting: Sequence[Waiting], held_until_s: Sequence[float], wires: int, now_s: float
) -> tuple[float, ...]:
    """When each of those that wait, in order of precedence, would get a wire; in the same order.

    `held_until_s` is when each holder will be done, `wires` how many there are.
    """
    free_s = [now_s] * (wires - len(held_until_s)) + [max(now_s, end_s) for end_s in held_until_s]
    heapify(free_s)
    starts = [0.0] * len(waiting)
    left = list(range(len(waiting)))
    while left:
        free = heappop(free_s)
        at_s = max(free, min(waiting[index].ready_s for index in left))
        index = next(index for index in left if waiting[index].ready_s <= at_s)
        left.remove(index)
        starts[index] = at_s
        ask = waiting[index].ask
        heappush(free_s, at_s + ask.wire_s if ask.in_time(at_s) else free)
    return tuple(starts)
