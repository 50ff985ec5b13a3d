"""Regimes: in which region of the map an object lies (paper, section 6.3, figure 2).

The map is of one state size and one horizon. Its two lines are the deadline gate B = S/H + D and
the phase line D = B; the region names the primitive that is legal there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from worldline.admissibility.condition import Condition, PathCost, Transfer


class Regime(StrEnum):
    """A region of the map."""

    HOT = "hot"
    INADMISSIBLE = "inadmissible"
    ADMISSIBLE = "admissible"


@dataclass(frozen=True, slots=True)
class MapObject:
    """A point of the map: what its generation dirties, over the bandwidth that it has."""

    name: str
    dirty_rate_bytes_per_s: float
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Located:
    """An object and where it lies.

    `frozen_admissible` says whether a stop-and-copy of the same state would be in time: a frozen
    source dirties nothing, and above the phase line that is the only move there is.
    """

    name: str
    dirty_rate_bytes_per_s: float
    rate_bytes_per_s: float
    required_rate_bytes_per_s: float
    regime: Regime
    frozen_admissible: bool


def locate(point: MapObject, state_bytes: int, horizon_ms: float) -> Located:
    """The region of `point` on the map of that state and horizon.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    path = PathCost(point.rate_bytes_per_s)
    live = Condition(Transfer(state_bytes, horizon_ms, point.dirty_rate_bytes_per_s), path)
    return Located(
        name=point.name,
        dirty_rate_bytes_per_s=point.dirty_rate_bytes_per_s,
        rate_bytes_per_s=point.rate_bytes_per_s,
        required_rate_bytes_per_s=live.transfer.required_rate_bytes_per_s,
        regime=_regime(live),
        frozen_admissible=live.frozen.admissible,
    )


def _regime(live: Condition) -> Regime:
    if live.path.l_star_ms(live.transfer) is None:
        return Regime.HOT
    return Regime.ADMISSIBLE if live.admissible else Regime.INADMISSIBLE
