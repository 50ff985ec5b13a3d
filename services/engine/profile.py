"""Profile: what a quantum of each preset takes on this engine, measured."""

from __future__ import annotations

from dataclasses import dataclass

#: Share of the newest sample in the average.
_BLEND = 0.2


@dataclass(frozen=True)
class Profile:
    """One measured row."""

    preset: str
    quantum_ms: float
    quanta_per_block: int


class Profiles:
    """Exponentially weighted averages by preset."""

    def __init__(self) -> None:
        self._rows: dict[str, Profile] = {}

    def add(self, preset: str, quanta_per_block: int, quantum_ms: float) -> None:
        """Take in one measured quantum."""
        known = self._rows.get(preset)
        if known is not None:
            quantum_ms = known.quantum_ms + _BLEND * (quantum_ms - known.quantum_ms)
        self._rows[preset] = Profile(preset, quantum_ms, quanta_per_block)

    def quantum_s(self, preset: str) -> float:
        """Expected seconds of one quantum; 0 before the first sample."""
        known = self._rows.get(preset)
        return 0.0 if known is None else known.quantum_ms / 1e3

    def rows(self) -> tuple[Profile, ...]:
        """All rows, by preset."""
        return tuple(self._rows[name] for name in sorted(self._rows))
