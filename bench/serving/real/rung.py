"""Rung: a period, chosen from what quanta were measured to take here, and what it leaves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.expected import Expected
from services.engine.schedule import Guard

#: The paper's first rung over four of its quanta (section 6.6): 600 ms over 594.
TIGHT_OVER_FULL = 600 / 594


@dataclass(frozen=True, slots=True)
class Rung:
    """One period of the interactive contract. Seconds, by 95th percentiles of quanta."""

    name: str
    period_s: float
    #: One quantum of bulk.
    quantum_s: float
    #: What a block leaves of the period, at full quality and at the floor.
    left_full_s: float
    left_floor_s: float

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "name": self.name,
            "period_ms": self.period_s * 1e3,
            "quantum_ms": self.quantum_s * 1e3,
            "left_full_ms": self.left_full_s * 1e3,
            "left_floor_ms": self.left_floor_s * 1e3,
        }


def rungs(
    expected: Expected, full_quanta: int, floor_quanta: int, guard: Guard
) -> tuple[Rung, Rung]:
    """A tight period and a wide one.

    Tight: full quality fits without its margin and leaves less than a quantum of bulk; the floor
    leaves at least one. Wide: full quality, a quantum of bulk and the margins of both fit.
    """
    full_s = expected.block_s(full_quanta)
    periods = {
        "tight": full_s * TIGHT_OVER_FULL,
        "wide": guard.bound_s(full_s) + guard.bound_s(expected.step_s),
    }
    floor_s = expected.block_s(floor_quanta)
    tight, wide = (
        Rung(name, period_s, expected.step_s, period_s - full_s, period_s - floor_s)
        for name, period_s in periods.items()
    )
    return tight, wide
