"""Flight: the block that a session is in the middle of."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from services.engine.quality import Quality
from services.engine.world import Frames


@dataclass
class Flight:
    """From its first quantum to its last. Keeps views of the slot alive."""

    run: Generator[None, None, Frames]
    quality: Quality
    #: Quanta that it has, and had so far.
    quanta: int
    quanta_done: int = 0
    #: When its action came.
    begun_at: float = 0.0
    #: Milliseconds that its quanta took.
    spent_ms: float = 0.0

    @property
    def quanta_left(self) -> int:
        """At least one, until the model says that it was the last."""
        return max(1, self.quanta - self.quanta_done)
