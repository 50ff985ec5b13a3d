"""Pacer: how fast each client may ask. One that floods waits, and then is told when to return."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from asyncio_throttle.throttler import Throttler

from worldline.errors import CapacityExhausted
from worldline.fields import non_negative, whole

#: The window that a client's requests are counted in.
PERIOD_S = 1.0


@dataclass(slots=True)
class _Client:
    throttle: Throttler
    waiting: int = 0


class ClientPacer:
    """At most `rate_per_s` requests per client and second, in a sliding window.

    A request above that waits for up to `wait_max_s`; at most `waiters_max` of one client wait at
    once. The `clients_max` clients heard of last are remembered.

    Raises:
        InvalidInput: a limit out of range.
    """

    def __init__(
        self,
        *,
        rate_per_s: int,
        wait_max_s: float,
        waiters_max: int,
        clients_max: int,
    ) -> None:
        self._rate_per_s = whole(rate_per_s, "rate_per_s", at_least=1)
        self._wait_max_s = non_negative(wait_max_s, "wait_max_s")
        self._waiters_max = whole(waiters_max, "waiters_max", at_least=1)
        self._clients_max = whole(clients_max, "clients_max", at_least=1)
        #: Heard of longest ago first.
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def waiting(self) -> int:
        """Requests that wait now, of all clients."""
        return sum(client.waiting for client in self._clients.values())

    async def admit(self, client_id: str) -> None:
        """Return when this client may go on.

        Raises:
            CapacityExhausted: PACED, it would wait longer than the bound or behind too many.
        """
        client = self._client(client_id)
        if client.waiting >= self._waiters_max:
            raise self._paced(client_id)
        client.waiting += 1
        try:
            async with asyncio.timeout(self._wait_max_s):
                await client.throttle.acquire()  # type: ignore[no-untyped-call]
        except TimeoutError:
            raise self._paced(client_id) from None
        finally:
            client.waiting -= 1

    def _client(self, client_id: str) -> _Client:
        client = self._clients.get(client_id)
        if client is not None:
            self._clients.move_to_end(client_id)
            return client
        if len(self._clients) >= self._clients_max:
            self._forget_one(client_id)
        client = _Client(Throttler(rate_limit=self._rate_per_s, period=PERIOD_S))
        self._clients[client_id] = client
        return client

    def _forget_one(self, newcomer: str) -> None:
        """Forget the client heard of longest ago; one that waits must stay counted."""
        for client_id, client in self._clients.items():
            if client.waiting == 0:
                del self._clients[client_id]
                return
        raise self._paced(newcomer)

    def _paced(self, client_id: str) -> CapacityExhausted:
        return CapacityExhausted(
            f"client {client_id} asks faster than {self._rate_per_s} times a second",
            reason="PACED",
            # After a whole window of silence nothing of it counts any more.
            retry_after_ms=round(PERIOD_S * 1e3),
        )
