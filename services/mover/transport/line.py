"""Line: whose turn it is among operations of one thread, in the order in which they asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

Steps = Generator[None, None, None]


class Line:
    """One at a time. Whoever has waited leaves, whatever becomes of it."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()

    def wait(self, who: object) -> Steps:
        """Until it is this one's turn."""
        self._waiting.append(who)
        while self._waiting[0] is not who:
            yield

    def leave(self, who: object) -> None:
        """The next one's turn."""
        if who in self._waiting:
            self._waiting.remove(who)


class Floor(Line):
    """Whose turn it is to touch bytes, and whether any moved.

    Two that took turns would evict each other's bytes from the cache, and both would end late.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved = False
