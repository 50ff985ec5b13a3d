"""Origins: the span in which each session was opened, for its moves' traces to point to."""

from __future__ import annotations

from collections import OrderedDict

#: A hundred bytes each. Beyond that, and after a restart, a move's trace points to no opening.
ORIGINS_MAX = 16_384


class Origins:
    """Traceparents by session id; the oldest go."""

    def __init__(self, origins_max: int = ORIGINS_MAX) -> None:
        self._origins_max = origins_max
        self._known: OrderedDict[str, str] = OrderedDict()

    def note(self, session_id: str, traceparent: str) -> None:
        """The session was opened in this span; nothing where nothing is traced."""
        if not traceparent:
            return
        self._known[session_id] = traceparent
        while len(self._known) > self._origins_max:
            self._known.popitem(last=False)

    def of(self, session_id: str) -> str:
        """That span's traceparent; empty where it is not known."""
        return self._known.get(session_id, "")

    def forget(self, session_id: str) -> None:
        """The session is closed."""
        self._known.pop(session_id, None)
