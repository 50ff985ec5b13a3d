"""Flight: the block that a session is in the middle of.

Its quanta pass in the worker's thread. Nobody else touches it while they do: whoever decides
between quanta, in the loop's thread or in the worker's, the other one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from services.engine.quality import Quality
from services.engine.quantum import Quantum
from services.engine.world import Frames

#: So long at most the loop hears nothing of quanta that have passed: rows, leases and metrics want
#: them. A hand-over is nothing to a quantum that takes so long.
UNTOLD_MS_MAX = 1_000.0


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

    def fly(
        self, advance: Callable[[], Quantum], goes_on: Callable[[Quantum], bool]
    ) -> list[Quantum]:
        """The next quantum, and those that follow it, in the worker's thread.

        `goes_on` is asked at every boundary between two of them, with the one that has passed. The
        block's last quantum ends it, and so does a failed one.
        """
        passed: list[Quantum] = []
        untold_ms = 0.0
        while True:
            done = advance()
            self.quanta_done += 1
            self.spent_ms += done.elapsed_ms
            untold_ms += done.elapsed_ms
            passed.append(done)
            if done.over or untold_ms >= UNTOLD_MS_MAX or not goes_on(done):
                return passed
