"""Turns: of several clients that want one receiver, the one served longest ago goes next.

A client that was refused a busy receiver has a claim until it was told to come back, and a little
longer. While the claim stands, a client that was served more recently is refused, so that one
that floods cannot take every opening before the others are back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from services.admission.holds import retry_after_ms
from worldline.verdict import RejectReason, Verdict

#: How much later than told a client may come and still find its claim: a round trip and a
#: scheduling delay. The receiver may stand idle for as long, so it is short beside a move.
GRACE_S = 0.1
#: A claim is for the next opening, not for a far one: nobody else is kept off for longer.
CLAIM_MAX_S = 2.0
#: Clients remembered for one receiver: more do not compete for it at once.
RECEIVER_CLIENTS_MAX = 64


class _Queue:
    """Clients of one receiver."""

    def __init__(self) -> None:
        #: When each was served last.
        self.served_s: OrderedDict[str, float] = OrderedDict()
        #: Until when each may come and claim.
        self.claimed_until_s: dict[str, float] = {}


class Turns:
    """One queue for each receiver; those of the `receivers_max` asked for last are remembered."""

    def __init__(self, receivers_max: int) -> None:
        self._receivers_max = receivers_max
        #: Used longest ago first.
        self._queues: OrderedDict[str, _Queue] = OrderedDict()

    def check(self, verdict: Verdict, node_id: str, client_id: str, now_s: float) -> Verdict:
        """The verdict, or a reject where it is another client's turn at that receiver."""
        queue = self._queues.get(node_id)
        if queue is None:
            return verdict
        mine_s = queue.served_s.get(client_id, float("-inf"))
        _drop_lapsed(queue, now_s)
        before = [
            until_s
            for other, until_s in queue.claimed_until_s.items()
            if other != client_id and queue.served_s.get(other, float("-inf")) < mine_s
        ]
        if not before:
            return verdict
        wait_s = min(before) - now_s
        numbers = {**verdict.numbers, "clients_before": float(len(before))}
        return Verdict.reject(
            RejectReason.RECEIVER_BUSY,
            f"{node_id} is kept for {len(before)} other clients that were refused it and served "
            "less recently",
            numbers,
            retry_after_ms=retry_after_ms(now_s + wait_s, now_s),
        )

    def admitted(
        self, node_id: str, client_id: str, now_s: float, others: Iterable[str] = ()
    ) -> None:
        """This client was served there, and wants none of the `others` any more."""
        for other in others:
            queue = self._queues.get(other)
            if queue is not None:
                queue.claimed_until_s.pop(client_id, None)
        queue = self._queue(node_id)
        queue.claimed_until_s.pop(client_id, None)
        queue.served_s[client_id] = now_s
        queue.served_s.move_to_end(client_id)
        if len(queue.served_s) > RECEIVER_CLIENTS_MAX:
            queue.served_s.popitem(last=False)

    def rejected(self, node_id: str, client_id: str, now_s: float, retry_after_ms: int) -> None:
        """This client was refused the receiver and told when to come back."""
        until_s = now_s + min(retry_after_ms / 1e3, CLAIM_MAX_S) + GRACE_S
        queue = self._queue(node_id)
        _drop_lapsed(queue, now_s)
        if len(queue.claimed_until_s) < RECEIVER_CLIENTS_MAX:
            queue.claimed_until_s[client_id] = until_s

    def _queue(self, node_id: str) -> _Queue:
        queue = self._queues.setdefault(node_id, _Queue())
        self._queues.move_to_end(node_id)
        if len(self._queues) > self._receivers_max:
            self._queues.popitem(last=False)
        return queue


def _drop_lapsed(queue: _Queue, now_s: float) -> None:
    lapsed = [one for one, until_s in queue.claimed_until_s.items() if until_s <= now_s]
    for client_id in lapsed:
        del queue.claimed_until_s[client_id]
