"""Expected: what the quanta of a session take, by the measured row of its shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """Seconds that hardly any quantum exceeds; 0 where none was measured yet.

    The last quantum of a block also decodes and is often longer than the others.
    """

    step_s: float = 0.0
    closing_s: float = 0.0

    @property
    def extra_s(self) -> float:
        """By how much the last quantum is longer than the others; negative where it is shorter."""
        return self.closing_s - self.step_s

    def next_s(self, quanta_left: int) -> float:
        """The next quantum of a block that has so many left."""
        return self.closing_s if quanta_left <= 1 else self.step_s

    def block_s(self, quanta: int) -> float:
        """The last so many quanta of a block."""
        return max(0, quanta - 1) * self.step_s + (self.closing_s if quanta > 0 else 0.0)
