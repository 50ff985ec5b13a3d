"""Reserving: offers that wait for their reservations, which come from somebody else.

Placement asks the target to reserve and the source to push at once, so that a source's offer may be
at the target before the reservation is.
"""

from __future__ import annotations

import asyncio


class Reserving:
    """Who waits for which reservation. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(self, reservation_id: str) -> None:
        """Until somebody says that it is decided. The caller bounds the wait."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(reservation_id, []).append(told)
        try:
            await told
        finally:
            waiting = self._waiting.get(reservation_id, [])
            if told in waiting:
                waiting.remove(told)
            if not waiting:
                self._waiting.pop(reservation_id, None)

    def decided(self, reservation_id: str) -> None:
        """Wake whoever waits for this one."""
        for told in self._waiting.pop(reservation_id, []):
            if not told.done():
                told.set_result(None)

    def __len__(self) -> int:
        return len(self._waiting)
