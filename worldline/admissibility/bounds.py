"""Bounds: the ranges that keep every equation here finite.

Within them no product or quotient of this package overflows, underflows to 0 or turns NaN, so
the equations need no checks of their own.
"""

from __future__ import annotations

from worldline.contract import HORIZON_MS_MAX, HORIZON_MS_MIN
from worldline.fields import non_negative, positive, whole

#: 1 B/s to 1 PB/s: slower is no wire, faster is no measurement.
RATE_BYTES_PER_S_MIN = 1.0
RATE_BYTES_PER_S_MAX = 1e15
#: As the horizons of a contract: a nanosecond to a day.
DURATION_MS_MIN = HORIZON_MS_MIN
DURATION_MS_MAX = HORIZON_MS_MAX


def check_state_bytes(value: int, field: str) -> int:
    """A state of at least one byte.

    Raises:
        InvalidInput: out of range.
    """
    return whole(value, field, at_least=1)


def check_rate(value: float, field: str) -> float:
    """A rate in bytes per second that can carry a state.

    Raises:
        InvalidInput: NaN, infinite, or outside 1 B/s to 1 PB/s.
    """
    return positive(value, field, at_least=RATE_BYTES_PER_S_MIN, at_most=RATE_BYTES_PER_S_MAX)


def check_dirty_rate(value: float, field: str) -> float:
    """A dirty rate in bytes per second; 0 for a frozen source.

    Raises:
        InvalidInput: NaN, infinite, negative, or above 1 PB/s.
    """
    return non_negative(value, field, at_most=RATE_BYTES_PER_S_MAX)


def check_duration_ms(value: float, field: str) -> float:
    """A duration above 0 and at most a day.

    Raises:
        InvalidInput: NaN, infinite, or out of range.
    """
    return positive(value, field, at_least=DURATION_MS_MIN, at_most=DURATION_MS_MAX)


def check_setup_ms(value: float, field: str) -> float:
    """A fixed cost of a move, 0 or more and at most a day.

    Raises:
        InvalidInput: NaN, infinite, or out of range.
    """
    return non_negative(value, field, at_most=DURATION_MS_MAX)
