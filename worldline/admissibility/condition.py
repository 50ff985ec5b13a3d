"""Condition (1): a move is admissible iff it ends in time and outruns what dirties it.

Paper, section 4.1: T_migrate(S) < H and B >= S/H + D, with L* = S/(B - D) (equation 2). The
first clause bounds time (deliver before the state goes stale), the second flux (outrun the bytes
that generation keeps dirtying); either can hold without the other. A frozen source is D = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from worldline.admissibility.bounds import (
    check_dirty_rate,
    check_duration_ms,
    check_rate,
    check_setup_ms,
    check_state_bytes,
)


@dataclass(frozen=True, slots=True)
class Transfer:
    """What must move: S bytes within horizon H, while D bytes a second go stale.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    state_bytes: int
    horizon_ms: float
    dirty_rate_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        check_state_bytes(self.state_bytes, "state_bytes")
        check_duration_ms(self.horizon_ms, "horizon_ms")
        check_dirty_rate(self.dirty_rate_bytes_per_s, "dirty_rate_bytes_per_s")

    @property
    def required_rate_bytes_per_s(self) -> float:
        """S/H + D, the least bandwidth that passes the second clause."""
        return self.state_bytes / (self.horizon_ms / 1e3) + self.dirty_rate_bytes_per_s

    def admissible(self, rate_bytes_per_s: float, setup_ms: float) -> bool:
        """Condition (1) on a cost of these parts, which are in range: both clauses."""
        in_time = t_migrate_ms(self.state_bytes, rate_bytes_per_s, setup_ms) < self.horizon_ms
        return in_time and rate_bytes_per_s >= self.required_rate_bytes_per_s

    @property
    def frozen(self) -> Transfer:
        """The same from a source that stands still, D = 0: the block-boundary stop-and-copy.

        Its horizon bounds the stall; that of a live transfer bounds the age of the state.
        """
        return replace(self, dirty_rate_bytes_per_s=0.0)


@dataclass(frozen=True, slots=True)
class PathCost:
    """What a path costs: verified bytes a second (B), and the fixed cost of one move.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    rate_bytes_per_s: float
    setup_ms: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.rate_bytes_per_s, "rate_bytes_per_s")
        check_setup_ms(self.setup_ms, "setup_ms")

    def t_migrate_ms(self, state_bytes: int) -> float:
        """T_migrate(S) = set-up + S/B: extract, transmit, verify and commit S bytes.

        B is the rate of verified bytes, so verification is in the second term; the rest of the
        fixed work is in the first.

        Raises:
            InvalidInput: a size out of range.
        """
        check_state_bytes(state_bytes, "state_bytes")
        return t_migrate_ms(state_bytes, self.rate_bytes_per_s, self.setup_ms)

    def l_star_ms(self, transfer: Transfer) -> float | None:
        """L* = S/(B - D), the least horizon that passes the second clause (equation 2).

        None where B <= D: no horizon is long enough, the target is never caught.
        """
        net_bytes_per_s = self.rate_bytes_per_s - transfer.dirty_rate_bytes_per_s
        if net_bytes_per_s <= 0:
            return None
        return transfer.state_bytes / net_bytes_per_s * 1e3


class Condition(NamedTuple):
    """Condition (1) read on one transfer and one path.

    `in_time` is the first clause, strict as printed; `outruns_dirtying` the second, not strict.
    """

    transfer: Transfer
    path: PathCost

    @property
    def t_migrate_ms(self) -> float:
        """T_migrate(S)."""
        return self.path.t_migrate_ms(self.transfer.state_bytes)

    @property
    def in_time(self) -> bool:
        """T_migrate(S) < H."""
        return self.t_migrate_ms < self.transfer.horizon_ms

    @property
    def outruns_dirtying(self) -> bool:
        """B >= S/H + D."""
        return self.path.rate_bytes_per_s >= self.transfer.required_rate_bytes_per_s

    @property
    def frozen(self) -> Condition:
        """The same path with the source frozen, where generation dirties nothing."""
        return self._replace(transfer=self.transfer.frozen)

    @property
    def admissible(self) -> bool:
        """Both clauses."""
        return self.transfer.admissible(self.path.rate_bytes_per_s, self.path.setup_ms)

    def numbers(self) -> dict[str, float]:
        """Every quantity of the condition, with its unit last.

        `l_star_ms` is left out where no horizon is long enough.
        """
        numbers = {
            "state_bytes": float(self.transfer.state_bytes),
            "horizon_ms": self.transfer.horizon_ms,
            "dirty_rate_bytes_per_s": self.transfer.dirty_rate_bytes_per_s,
            "rate_bytes_per_s": self.path.rate_bytes_per_s,
            "setup_ms": self.path.setup_ms,
            "t_migrate_ms": self.t_migrate_ms,
            "required_rate_bytes_per_s": self.transfer.required_rate_bytes_per_s,
        }
        l_star_ms = self.path.l_star_ms(self.transfer)
        if l_star_ms is not None:
            numbers["l_star_ms"] = l_star_ms
        return numbers


def t_migrate_ms(state_bytes: int, rate_bytes_per_s: float, setup_ms: float) -> float:
    """T_migrate(S) of numbers that were checked before, for whoever compares many paths."""
    return setup_ms + state_bytes / rate_bytes_per_s * 1e3
