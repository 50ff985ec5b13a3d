"""Rate limiter: a token bucket at the cell's nominal capacity, and a queue in front of it."""

from __future__ import annotations

from bench.fabric.cell import Cell
from bench.fabric.policies.accept_all import AcceptAll
from bench.fabric.policies.policy import Answer, Reject, Wait
from bench.fabric.workload import Offer, Workload


class RateLimiter(AcceptAll):
    """Knows how many moves a second the cell carries, and nothing of receivers or deadlines.

    One token an interval, one for every receiver but one saved up. An offer waits for its token,
    first come first served, for as long as its horizon, and is dropped after that.
    """

    def __init__(self, cell: Cell, workload: Workload, seed: int) -> None:
        super().__init__(cell, workload, seed)
        self._interval_s = 1.0 / cell.capacity_per_s
        self._saved_max_s = self._interval_s * (len(cell.nodes) - 1)
        self._next_token_s = -self._saved_max_s
        #: Offers that wait, and whether a token comes in time for them.
        self._waiting: dict[str, bool] = {}

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """Now, when its token comes, or, after a wait, not at all."""
        in_time = self._waiting.pop(offer.move_id, None)
        if in_time is not None:
            return super().decide(offer, now_s) if in_time else Reject("NO_TOKEN", later=True)
        token_s = max(self._next_token_s, now_s - self._saved_max_s)
        in_time = token_s - now_s <= offer.horizon_s
        if in_time:
            self._next_token_s = token_s + self._interval_s
        if token_s <= now_s:
            return super().decide(offer, now_s)
        self._waiting[offer.move_id] = in_time
        return Wait(token_s if in_time else now_s + offer.horizon_s)
