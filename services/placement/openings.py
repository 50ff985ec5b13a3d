"""Openings: sessions on their way to be live, and which of them nobody sees to an end. Pure.

A session is OPENING on record from before its engine is asked until it lives or was undone. The
task that opens it is the only one that knows more, and a task may end without either: the directory
refuses a write while its disk is full, or there is a bug. No client can close what is opening, its
engine is told that it owns the world, and its slot is somebody's: only a look at the record shows
that nobody is at it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from services.placement.records import SessionRecord, SessionState


class Openings:
    """Which openings and undoings are in somebody's hand."""

    def __init__(self) -> None:
        self._in_hand: Counter[str] = Counter()
        self._forsaken: frozenset[str] = frozenset()

    @contextmanager
    def in_hand(self, session_ids: Iterable[str]) -> Iterator[None]:
        """Inside, somebody sees to these: from before they are on record until they have ended."""
        names = tuple(session_ids)
        self._in_hand.update(names)
        try:
            yield
        finally:
            self._in_hand -= Counter(names)

    def forsaken(self, sessions: Iterable[SessionRecord]) -> tuple[SessionRecord, ...]:
        """Those of the sessions, as just read, that were opening in nobody's hand twice in a row.

        One look does not tell: what is in nobody's hand may have come to its end since it was read.
        """
        opening = [
            one
            for one in sessions
            if one.state is SessionState.OPENING and one.session_id not in self._in_hand
        ]
        before, self._forsaken = self._forsaken, frozenset(one.session_id for one in opening)
        return tuple(one for one in opening if one.session_id in before)
