"""Caller: unary calls with a deadline, retried where the policy says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from worldline.errors import DeadlineExceeded, WorldlineError
from worldline.rpc.channel import call
from worldline.sdk.retry import RetryPolicy

#: Tells the server's logs which attempt of one logical call this is.
ATTEMPT_KEY = "worldline-attempt"
CLIENT_KEY = "worldline-client-id"


class Caller:
    """Makes calls for one client."""

    def __init__(self, client_id: str, timeout_s: float, policy: RetryPolicy | None = None) -> None:
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.policy = policy or RetryPolicy()

    def metadata(self, attempt: int = 1) -> tuple[tuple[str, str], ...]:
        """What every call carries beside its trace context."""
        return ((CLIENT_KEY, self.client_id), (ATTEMPT_KEY, str(attempt)))

    async def once(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None = None
    ) -> Any:
        """One attempt: for calls whose lost reply must be asked about and not repeated."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return await call(method, request, timeout_s=limit_s, metadata=self.metadata())

    async def retried(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None = None
    ) -> Any:
        """Attempts within one deadline over all of them.

        Only for calls that are idempotent, by nature or by the key in `request`.

        Raises:
            WorldlineError: the peer's own, or the last one when the deadline is near.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        attempt = 1
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(f"no answer within {limit_s:g} s")
            try:
                return await call(
                    method, request, timeout_s=left_s, metadata=self.metadata(attempt)
                )
            except WorldlineError as error:
                delay_s = self.policy.delay_s(error, attempt, time.monotonic(), deadline_s)
                if delay_s is None:
                    raise
            await asyncio.sleep(delay_s)
            attempt += 1
