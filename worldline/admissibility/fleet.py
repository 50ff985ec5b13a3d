"""Fleet: how many moves one channel carries within a horizon, as a fluid and one after another.

Paper, section 4.1, equation 3 and its footnote; the contention law of section 6.3.
"""

from __future__ import annotations

import math

from worldline.admissibility.bounds import (
    check_dirty_rate,
    check_duration_ms,
    check_rate,
    check_setup_ms,
    check_state_bytes,
)
from worldline.fields import whole


def horizon_bytes(state_bytes: int, dirty_rate_bytes_per_s: float, horizon_ms: float) -> float:
    """C = S + D*H, the bytes that one move of a generating source costs within its horizon.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    check_state_bytes(state_bytes, "state_bytes")
    check_dirty_rate(dirty_rate_bytes_per_s, "dirty_rate_bytes_per_s")
    check_duration_ms(horizon_ms, "horizon_ms")
    return state_bytes + dirty_rate_bytes_per_s * horizon_ms / 1e3


def fluid_moves_max(
    move_bytes: float, rate_bytes_per_s: float, horizon_ms: float, setup_ms: float = 0.0
) -> float:
    """N <= H*B/C, the bound of equation 3; with `setup_ms`, each move's fixed cost is charged too.

    The fluid bound drops that cost and so admits one move too many where states are small.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    check_rate(move_bytes, "move_bytes")  # the same range: 1 B to 1 PB
    check_rate(rate_bytes_per_s, "rate_bytes_per_s")
    check_duration_ms(horizon_ms, "horizon_ms")
    check_setup_ms(setup_ms, "setup_ms")
    return moves_max_at_wall(move_bytes / rate_bytes_per_s * 1e3 + setup_ms, horizon_ms)


def moves_max_at_wall(wall_ms: float, horizon_ms: float) -> float:
    """N <= H/T, the same bound from a measured wall-clock time T of one move.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    check_duration_ms(wall_ms, "wall_ms")
    check_duration_ms(horizon_ms, "horizon_ms")
    return horizon_ms / wall_ms


def contended_wall_ms(moves: int, solo_ms: float, added_ms: float) -> float:
    """T(N) = T(1) + added*(N - 1): the wall of N moves that one receiver serves in turn.

    The contention law of section 6.3. `added_ms` is what each further move adds, the share of its
    wall that it alone holds the receiver for.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    whole(moves, "moves", at_least=1)
    check_duration_ms(solo_ms, "solo_ms")
    check_duration_ms(added_ms, "added_ms")
    return solo_ms + added_ms * (moves - 1)


def contended_moves_max(horizon_ms: float, solo_ms: float, added_ms: float) -> int:
    """The largest N with T(N) < H by the contention law; 0 where even one move is too slow.

    The comparison is strict, as in the first clause of condition (1).

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    check_duration_ms(horizon_ms, "horizon_ms")
    check_duration_ms(solo_ms, "solo_ms")
    check_duration_ms(added_ms, "added_ms")
    # N - 1 < (H - T(1))/added, so that a quotient without remainder does not count.
    return max(0, math.ceil((horizon_ms - solo_ms) / added_ms))
