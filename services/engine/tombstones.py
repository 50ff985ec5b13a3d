"""Tombstones: what ended sessions leave for clients that did not see the end."""

from __future__ import annotations

from collections import OrderedDict

from services.engine.session import Session

#: How long a client may take to come back for its last blocks.
KEEP_S = 30.0
#: Each holds at most eight blocks of frames.
TOMBSTONES_MAX = 64


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
