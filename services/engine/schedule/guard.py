"""Guard: may a quantum start that cannot be taken back, with hard deadlines ahead?

Sized by headroom (paper, section 5). The headroom of a device is how long it could stand still
from now without a hard block being late: the slack of an EDF schedule (processor demand, Baruah
et al. 1990). A quantum of another class starts only if it ends within the headroom, its own
overrun and the overrun of all hard blocks counted. Seen from the next hard release this is a
band: wide, and before the release, where little headroom is left; narrow where there is more;
beyond the release where the block could start late and still be in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.engine.schedule.claim import Claim, Demand
from worldline.errors import InvalidInput

#: Blocks of one session that are looked ahead, so that a short period beside a long one stays
#: cheap.
BLOCKS_AHEAD_MAX = 16


@dataclass(frozen=True, slots=True)
class Guard:
    """How far expected times are trusted.

    Raises:
        InvalidInput: a negative or infinite margin.
    """

    #: A quantum may take longer than expected by this share of it.
    overrun: float = 0.05
    #: Seconds from one quantum's end to the next one's start: what the serving layer costs.
    handover_s: float = 0.0002

    def __post_init__(self) -> None:
        for name in ("overrun", "handover_s"):
            value: float = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InvalidInput(f"guard.{name} is {value}: must be 0 or more", field=name)

    def bound_s(self, expected_s: float) -> float:
        """The longest that something expected to take `expected_s` is planned to take."""
        return expected_s * (1 + self.overrun) + self.handover_s if expected_s > 0 else 0.0

    def allows(self, quantum_s: float, headroom_s: float) -> bool:
        """Whether a quantum may start. One of unknown length may, in any headroom but none."""
        return self.bound_s(quantum_s) <= headroom_s

    def band_s(self, quantum_s: float, to_release_s: float, headroom_s: float) -> float:
        """How long before the next hard release a quantum must be expected to end.

        Negative where it may overlap the release: by no more than the block there can be late.
        """
        return to_release_s - headroom_s + self.bound_s(quantum_s) - quantum_s


def headroom_s(claims: Iterable[Claim], now: float, guard: Guard) -> float:
    """How long the device could stand still and no hard block be late; negative where one will be.

    For every deadline: the time until it, less everything due by then. Blocks that are not
    released yet count in full, since what starts now may end after their release; so do the
    blocks that follow them. Infinite without hard claims.
    """
    return least_slack_s([claim.demand for claim in claims if claim.hard], now, guard)


def slack_s(claim: Claim, claims: Iterable[Claim], now: float, guard: Guard) -> float:
    """How long the block of `claim` may take, all in all, so that no hard block is late for it.

    Its own deadline bounds it, less what is due before; and every later deadline less what is due
    by then. `claim` itself is left out of what is due, the blocks after it are not. A soft deadline
    bounds nobody else.
    """
    demands = [
        other.demand for other in claims if other.hard and other.session_id != claim.session_id
    ]
    demands.append(claim.demand._replace(left_s=0.0))
    return least_slack_s(demands, now, guard, since=claim.due_at)


def least_slack_s(
    demands: Sequence[Demand], now: float, guard: Guard, since: float = -math.inf
) -> float:
    """The least, over all deadlines from `since` on, of the time left less what is due by then."""
    share, handover_s = 1 + guard.overrun, guard.handover_s
    least, end = math.inf, now
    for due_at, left_s in _by_deadline(demands):
        if left_s > 0:
            end += left_s * share + handover_s
        if due_at >= since and due_at - end < least:
            least = due_at - end
    return least


def _by_deadline(demands: Sequence[Demand]) -> list[tuple[float, float]]:
    """Deadlines and what is due at each, those of following blocks among them.

    They are followed to the last of the next deadlines; where periods are unlike, for one of the
    longest more, since such sessions ask for more together there than by any first deadline.
    """
    due = [(each.due_at, each.left_s) for each in demands]
    periodic = [each for each in demands if each.period_s > 0 and each.due_at < math.inf]
    if len(periodic) > 1:
        periods = {each.period_s for each in periodic}
        until = max(each.due_at for each in periodic) + (max(periods) if len(periods) > 1 else 0.0)
        for due_at, _, period_s, block_s in periodic:
            if due_at + period_s <= until:
                count = int(min(BLOCKS_AHEAD_MAX, (until - due_at) / period_s))
                due += [(due_at + number * period_s, block_s) for number in range(1, count + 1)]
    due.sort()
    return due
