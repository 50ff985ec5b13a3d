"""Signal: wakes everybody who waits for a change; no change between look and wait is missed."""

from __future__ import annotations

import asyncio
import contextlib


class Signal:
    """Take a `token`, look at what you wait for, then `wait` on the token."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def token(self) -> asyncio.Event:
        """Set by the next `notify`."""
        return self._event

    def notify(self) -> None:
        """Wake all who took a token since the last `notify`."""
        event, self._event = self._event, asyncio.Event()
        event.set()


async def wait_for_change(token: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the token; False when `timeout_s` ran out first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await token.wait()
    return token.is_set()
