"""Tombstones: what ended sessions leave for clients that did not see the end."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.engine.session import Session

#: How long a client may take to come back for its last blocks.
KEEP_S = 30.0
#: Each holds at most eight blocks of frames.
TOMBSTONES_MAX = 64


@dataclass(frozen=True)
class FailedWorld:
    """A world that ended because one of its blocks failed, and why."""

    session_id: str
    epoch: int
    message: str


class Tombstones:
    """Ended sessions by id, oldest first; bounded in number and time."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def add(self, session: Session) -> None:
        """Keep it; the newest one of a session replaces the older."""
        self._sessions.pop(session.session_id, None)
        self._sessions[session.session_id] = session
        while len(self._sessions) > TOMBSTONES_MAX:
            self._sessions.popitem(last=False)

    def get(self, session_id: str) -> Session | None:
        """The ended session, if it is still remembered."""
        return self._sessions.get(session_id)

    def failed(self) -> tuple[FailedWorld, ...]:
        """Worlds that a block's failure ended, oldest first: the directory must hear of them."""
        return tuple(
            FailedWorld(session.session_id, session.world.epoch, str(session.ending.error))
            for session in self._sessions.values()
            if session.ending is not None and session.ending.failed
        )

    def expire(self, now: float) -> None:
        """Forget those whose time is over."""
        for session_id, session in list(self._sessions.items()):
            if now - session.ended_at >= KEEP_S:
                del self._sessions[session_id]

    def clear(self) -> None:
        """Forget all."""
        self._sessions.clear()

    def __len__(self) -> int:
        return len(self._sessions)
