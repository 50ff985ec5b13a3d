"""Round robin: a quantum each in turn, blind to class and deadline.

The paper's naive baseline: C1 unprioritised, at its three steps always. With the ladder it is one
of the arms of section 8.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.serving.policies.policy import next_release, released
from bench.serving.policies.worldline import Worldline
from bench.serving.session import Session
from services.engine.schedule.ladder import Steps, Why


class RoundRobin:
    """Remembers whose turn was last."""

    def __init__(self, *, ladder: bool = False) -> None:
        self._last = -1
        self._ladder = Worldline() if ladder else None

    def next(self, sessions: Sequence[Session], now: float) -> Session | float:
        """The next session after the last one that has work."""
        count = len(sessions)
        for turn in range(1, count + 1):
            number = (self._last + turn) % count
            if released(sessions[number], now):
                self._last = number
                return sessions[number]
        return next_release(sessions, now)

    def steps(self, session: Session, sessions: Sequence[Session], now: float) -> Steps:
        """All of them; with the ladder, what fits."""
        if self._ladder is not None:
            return self._ladder.steps(session, sessions, now)
        return Steps(session.terms.ladder.full_steps, False, False, Why.NO_DEADLINE)
