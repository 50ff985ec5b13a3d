"""Lease: until when this engine may generate, by its own monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

#: Renewed this many times per lease: two requests may fail before anything pauses.
RENEWALS_PER_LEASE = 3


@dataclass(frozen=True)
class Lease:
    """What the last answered renewal grants, counted from when its request was *sent*.

    The directory counts from when it received the request, which is later: this engine stops
    first, whatever the network did in between. Nothing is granted before the first answer.
    """

    lease_s: float = 0.0
    sent_at: float | None = None

    def renewed(self, sent_at: float, lease_ms: float) -> Lease:
        """After an answer to a request sent at `sent_at`; answers that overtook count once."""
        if self.sent_at is not None and sent_at < self.sent_at:
            return self
        return Lease(lease_ms / 1e3, sent_at)

    def holds(self, now: float, work_s: float = 0.0) -> bool:
        """Whether work that takes `work_s` ends within the lease."""
        return self.sent_at is not None and now + work_s < self.sent_at + self.lease_s

    def renew_at(self) -> float:
        """When the next request is due; at once (0) before the first answer."""
        if self.sent_at is None:
            return 0.0
        return self.sent_at + self.lease_s / RENEWALS_PER_LEASE
