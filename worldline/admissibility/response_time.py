"""Response time: are moves of unequal size and horizon in time when they share one channel?

Paper, section 4.1 and appendix C: a move in flight holds its channel to commit or abort, so moves
block and interfere as non-preemptive jobs do. Deadline-monotonic, the shortest horizon first:
R_i = C_i/B + blocking_i + interference_i <= H_i, with C_i = S_i + D_i*H_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from worldline.admissibility.bounds import check_duration_ms, check_rate, check_setup_ms
from worldline.admissibility.condition import Transfer
from worldline.admissibility.fleet import horizon_bytes
from worldline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Channel:
    """What moves share: its rate, and the two fixed costs of a move.

    `held_ms` passes while the move holds the channel, `beside_ms` while another may hold it
    (freeze, the last digest, commit). The contention law of section 6.3 tells them apart: each
    further move adds 165 ms to the 250 ms of the first, so 85 ms of those are beside the channel.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    rate_bytes_per_s: float
    held_ms: float = 0.0
    beside_ms: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.rate_bytes_per_s, "rate_bytes_per_s")
        check_setup_ms(self.held_ms, "held_ms")
        check_setup_ms(self.beside_ms, "beside_ms")

    def occupied_ms(self, transfer: Transfer) -> float:
        """How long one move holds the channel: its fixed part and C/B."""
        move_bytes = horizon_bytes(
            transfer.state_bytes, transfer.dirty_rate_bytes_per_s, transfer.horizon_ms
        )
        return self.held_ms + move_bytes / self.rate_bytes_per_s * 1e3


@dataclass(frozen=True, slots=True)
class RecurringMove:
    """A move, and how long after one its session asks for the next at the earliest.

    `separation_ms` is None where the session moves once.

    Raises:
        InvalidInput: a separation out of range, or shorter than the horizon: the next move would
            be asked for before the one before it is due.
    """

    transfer: Transfer
    separation_ms: float | None = None

    def __post_init__(self) -> None:
        if self.separation_ms is None:
            return
        check_duration_ms(self.separation_ms, "separation_ms")
        if self.separation_ms < self.transfer.horizon_ms:
            raise InvalidInput(
                f"separation_ms must be at least the horizon of {self.transfer.horizon_ms:g} ms, "
                f"got {self.separation_ms:g}",
                field="separation_ms",
            )


@dataclass(frozen=True, slots=True)
class ResponseTime:
    """R_i of one move, part by part.

    Where the move is late, interference is counted only until that is certain.
    """

    horizon_ms: float
    occupied_ms: float
    beside_ms: float
    blocking_ms: float
    interference_ms: float

    @property
    def response_ms(self) -> float:
        """R_i: from the request until the move has committed, at worst."""
        return self.beside_ms + self.blocking_ms + self.interference_ms + self.occupied_ms

    @property
    def in_time(self) -> bool:
        """R_i <= H_i, not strict, as printed in appendix C."""
        return self.response_ms <= self.horizon_ms


def response_times(moves: Sequence[RecurringMove], channel: Channel) -> tuple[ResponseTime, ...]:
    """The response-time test of each move, in the order given.

    Exact where every session moves once. Where sessions move again the test is sufficient: a
    move may be pushed through by the one before it of the same session, which is charged as
    blocking (Davis, Burns, Bril and Lukkien, 2007). Moves of equal horizon count as
    interference of one another, because the channel may serve either first.
    """
    return tuple(_response_time(index, moves, channel) for index in range(len(moves)))


def schedulable(moves: Sequence[RecurringMove], channel: Channel) -> bool:
    """Whether every move is in time, whenever the sessions ask."""
    return all(response.in_time for response in response_times(moves, channel))


def _response_time(index: int, moves: Sequence[RecurringMove], channel: Channel) -> ResponseTime:
    move = moves[index]
    horizon_ms, occupied_ms = move.transfer.horizon_ms, channel.occupied_ms(move.transfer)
    others = [other for place, other in enumerate(moves) if place != index]
    later = [other for other in others if other.transfer.horizon_ms > horizon_ms]
    sooner = [other for other in others if other.transfer.horizon_ms <= horizon_ms]
    blocking_ms = max((channel.occupied_ms(other.transfer) for other in later), default=0.0)
    if move.separation_ms is not None:
        blocking_ms = max(blocking_ms, occupied_ms)
    return ResponseTime(
        horizon_ms=horizon_ms,
        occupied_ms=occupied_ms,
        beside_ms=channel.beside_ms,
        blocking_ms=blocking_ms,
        interference_ms=_interference_ms(sooner, channel, blocking_ms, horizon_ms),
    )


def _interference_ms(
    sooner: Sequence[RecurringMove], channel: Channel, blocking_ms: float, horizon_ms: float
) -> float:
    """What is served first: every move of `sooner` that is asked for before this one starts.

    Longer interference lets more of them be asked for, so the sum is taken again until it stands,
    or until the wait alone is longer than the horizon.
    """
    costs = [(channel.occupied_ms(move.transfer), move.separation_ms) for move in sooner]
    interference_ms = math.fsum(occupied_ms for occupied_ms, _ in costs)
    while blocking_ms + interference_ms <= horizon_ms:
        wait_ms = blocking_ms + interference_ms
        grown_ms = math.fsum(
            occupied_ms * (1 if separation_ms is None else 1 + wait_ms // separation_ms)
            for occupied_ms, separation_ms in costs
        )
        if grown_ms <= interference_ms:
            break
        interference_ms = grown_ms
    return interference_ms
