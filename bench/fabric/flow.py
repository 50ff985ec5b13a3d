"""Flow: one transfer on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Flow:
    """`left_bytes` falls at `rate_bytes_per_s`, which only the fabric sets."""

    flow_id: str
    source: str
    target: str
    size_bytes: float
    #: What this flow reaches at most, whatever its links have left.
    cap_bytes_per_s: float
    left_bytes: float
    rate_bytes_per_s: float = 0.0
    #: End of its stall; 0 while it is not stalled.
    resume_s: float = 0.0

    @property
    def moving(self) -> bool:
        """Not stalled."""
        return self.resume_s == 0.0


def new_flow(
    flow_id: str, source: str, target: str, size_bytes: float, cap_bytes_per_s: float
) -> Flow:
    """A flow of which nothing has been sent."""
    return Flow(flow_id, source, target, size_bytes, cap_bytes_per_s, left_bytes=size_bytes)
