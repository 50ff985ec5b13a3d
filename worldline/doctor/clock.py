"""Clock: how far another host's clock is from this one, and how far off that may be. Pure.

An exchange that left at `sent` and came back at `received` was answered somewhere between. The
middle is the best guess, and wrong by half the round trip at most (Cristian, 1989). Durations, not
absolute times, cross hosts here: a wrong clock spoils logs and traces, never a move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worldline.doctor.finding import Finding, Severity

#: Logs of two hosts that are further apart cannot be read side by side.
OFFSET_WARNING_MS = 500.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer, nanoseconds: two readings here, one there between them."""

    sent_ns: int
    answered_ns: int
    received_ns: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The other clock minus this one; right to within `uncertainty_ms`."""

    offset_ms: float
    uncertainty_ms: float

    @property
    def surely_ms(self) -> float:
        """How far apart the clocks are at least, without its sign."""
        return max(0.0, abs(self.offset_ms) - self.uncertainty_ms)


def offset_of(exchange: Exchange) -> Offset:
    """By halves of the round trip."""
    # Integers first: nanoseconds since 1970 are more than a float holds.
    doubled_ns = 2 * exchange.answered_ns - exchange.sent_ns - exchange.received_ns
    trip_ns = max(0, exchange.received_ns - exchange.sent_ns)
    return Offset(doubled_ns / 2e6, trip_ns / 2e6)


def best_offset(exchanges: Iterable[Exchange]) -> Offset | None:
    """Of the shortest round trip, whose uncertainty is least; None without any."""
    offsets = [offset_of(one) for one in exchanges]
    return min(offsets, key=lambda one: one.uncertainty_ms, default=None)


def check_clock(subject: str, offset: Offset) -> tuple[Finding, ...]:
    """Of one process, against whoever asked it."""
    if offset.surely_ms <= OFFSET_WARNING_MS:
        return ()
    way = "ahead of" if offset.offset_ms > 0 else "behind"
    return (
        Finding(
            Severity.WARNING,
            "CLOCK_OFF",
            subject,
            f"its clock is {abs(offset.offset_ms):.0f} ms {way} placement's, to within "
            f"{offset.uncertainty_ms:.1f} ms",
            "moves do not care; logs and traces of the two hosts cannot be read side by side",
            "chronyc makestep    # or timedatectl set-ntp true, on that host",
            "clock",
        ),
    )
