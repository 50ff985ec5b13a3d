"""Stock: a fixed number of things that are taken and given back, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Stock(Generic[T]):
    """Used from one event loop. What is taken is given back by whoever took it, once."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = deque(items)
        self._waiting: deque[asyncio.Future[T]] = deque()

    def __len__(self) -> int:
        """How many are here."""
        return len(self._items)

    def take_now(self) -> T | None:
        """One, if there is one that nobody waits for."""
        return self._items.popleft() if self._items else None

    async def take(self) -> T:
        """One, once it is this caller's turn. A cancelled wait takes nothing."""
        if self._items:
            return self._items.popleft()
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(turn.result())
            raise

    def give(self, item: T) -> None:
        """Back to the next one that waits, else to the stock."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(item)
                return
        self._items.append(item)
