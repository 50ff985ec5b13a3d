"""Pin-queue: the session that came first has the device; the rest queues behind it, FIFO.

The paper's isolation baseline. It honours the quality floor, on the same grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.serving.policies.policy import next_release, released
from bench.serving.policies.worldline import Worldline
from bench.serving.session import Session
from services.engine.schedule.ladder import Steps


class PinQueue:
    """One session at a time, until it ends."""

    def __init__(self) -> None:
        self._alone = Worldline()

    def next(self, sessions: Sequence[Session], now: float) -> Session | float:
        """The pinned session, or nobody."""
        pinned = next((session for session in sessions if session.wants_more), None)
        if pinned is None:
            return float("inf")
        return pinned if released(pinned, now) else next_release([pinned], now)

    def steps(self, session: Session, sessions: Sequence[Session], now: float) -> Steps:
        """What a session gets that has the device to itself."""
        return self._alone.steps(session, [session], now)
