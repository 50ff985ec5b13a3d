"""Policy: what the event loop asks between quanta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bench.serving.session import Session
from services.engine.schedule.ladder import Steps


class Policy(Protocol):
    """Decides for one device."""

    def next(self, sessions: Sequence[Session], now: float) -> Session | float:
        """Whose quantum is next, or until when to wait."""

    def steps(self, session: Session, sessions: Sequence[Session], now: float) -> Steps:
        """How many steps the block gets that `session` is about to begin."""


def next_release(sessions: Sequence[Session], now: float) -> float:
    """The next release of anybody; infinite without one."""
    times = [session.release.release_at for session in sessions if session.wants_more]
    return min((at for at in times if at > now), default=float("inf"))


def released(session: Session, now: float) -> bool:
    """Whether it could use a quantum now."""
    return session.wants_more and (session.mid_block or session.release.release_at <= now)
