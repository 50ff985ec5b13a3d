"""Retry policy: which failed call is made again, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from worldline.errors import WorldlineError

#: Anything else either took effect or will fail again (gRPC's own guidance on retriable codes).
_RETRIABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Doubling delays from `first_delay_s` up to `delay_max_s`, until the deadline."""

    first_delay_s: float = 0.05
    delay_max_s: float = 1.0

    def delay_s(
        self, error: WorldlineError, attempt: int, now_s: float, deadline_s: float
    ) -> float | None:
        """Seconds to wait before attempt `attempt + 1` (the first is 1); None: give up.

        The server's own `retry_after_ms` wins over the doubling. A wait that would end after the
        deadline is not begun.
        """
        if error.status not in _RETRIABLE:
            return None
        delay_s = self.backoff_s(attempt)
        if error.retry_after_ms is not None:
            delay_s = error.retry_after_ms / 1e3
        return delay_s if now_s + delay_s < deadline_s else None

    def backoff_s(self, attempt: int) -> float:
        """The doubling alone."""
        # The exponent is bounded so that a long outage does not make a huge integer.
        return min(self.delay_max_s, self.first_delay_s * 2.0 ** min(attempt - 1, 16))
