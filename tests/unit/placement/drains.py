"""Makers of what the decision of a drain is told."""

from __future__ import annotations

from dataclasses import replace

from services.placement.drain_values import Resident, Seat, View, Why
from services.placement.records import SessionState

BUSY = Why("RECEIVER_BUSY", "busy", 500.0)
NEVER = Why("HORIZON_TOO_SHORT", "too far")
FULL = Why("TARGET_FULL", "all slots are taken", 1_000.0)
FLIPPED = Why("INTEGRITY_ERROR", "bytes differed")


def seat(name: str) -> Seat:
    return Seat(f"n{name}", f"e{name}", f"n{name}/cpu")


def resident(name: str, seats: str = "23", node: str = "1", **changes: object) -> Resident:
    made = Resident(name, f"n{node}", SessionState.LIVE, 100, tuple(map(seat, seats)))
    return replace(made, **changes)  # type: ignore[arg-type]


def view(*residents: Resident, slots: int = 9, **changes: object) -> View:
    free = dict.fromkeys((f"n{number}/cpu" for number in range(1, 9)), slots)
    return replace(View(residents, free), **changes)  # type: ignore[arg-type]
