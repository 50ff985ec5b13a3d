"""Ladder: how many denoising steps the next block gets.

Quality is a priced ladder: every step is one quantum, and a context pass follows (paper, appendix
D). A block that would be late at full quality goes down to the highest rung that fits, never
below the contract's floor. Who tracks a reference cannot take many degraded blocks in a row:
their contract is (m,k)-firm (Hamdaoui and Ramanathan 1995), at least m of any k consecutive
blocks at full quality, and a block that may not be degraded is late instead, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from services.engine.schedule.guard import Guard
from worldline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of one session: what its engine can do, and what its contract forbids.

    Raises:
        InvalidInput: a floor above the top or below one step.
    """

    full_steps: int
    floor_steps: int
    #: Passes that every block needs beside its denoising steps.
    context_quanta: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.floor_steps <= self.full_steps:
            raise InvalidInput(
                f"floor_steps is {self.floor_steps}: must be from 1 to the {self.full_steps} "
                "steps of the engine",
                field="floor_steps",
            )
        if self.context_quanta < 0:
            raise InvalidInput(
                f"context_quanta is {self.context_quanta}: must be 0 or more",
                field="context_quanta",
            )

    def quanta(self, steps: int) -> int:
        """Quanta of a block with so many steps."""
        return steps + self.context_quanta

    def block_s(self, steps: int, quantum_s: float) -> float:
        """Expected seconds of a block with so many steps."""
        return self.quanta(steps) * quantum_s

    def highest_within(self, slack_s: float, quantum_s: float, guard: Guard) -> int | None:
        """The most steps whose block ends within `slack_s`; None where not even the floor does."""
        for steps in range(self.full_steps, self.floor_steps - 1, -1):
            if guard.bound_s(self.block_s(steps, quantum_s)) <= slack_s:
                return steps
        return None

    def kept_steps(self, period_s: float, quantum_s: float, guard: Guard) -> int:
        """What the session would get if it were alone on the device: what others may not cost it.

        The floor where not even that fits the period; full quality without a period.
        """
        if period_s <= 0 or quantum_s <= 0:
            return self.full_steps
        return self.highest_within(period_s, quantum_s, guard) or self.floor_steps


@dataclass(frozen=True, slots=True)
class Firm:
    """(m,k)-firm: at least `full_min` of any `window` consecutive blocks at full quality.

    At most c degraded blocks in a row is `Firm(1, c + 1)`; `Firm(0, 1)` forbids nothing.

    Raises:
        InvalidInput: more full blocks than the window has.
    """

    full_min: int = 0
    window: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.full_min <= self.window or self.window < 1:
            raise InvalidInput(
                f"{self.full_min} of {self.window} blocks at full quality: must be 0 to the "
                "window, which is 1 or more",
                field="full_min",
            )

    @classmethod
    def consecutive(cls, degraded_max: int) -> Firm:
        """At most so many degraded blocks in a row; 0 forbids nothing, as in a contract."""
        return cls(1, degraded_max + 1) if degraded_max > 0 else cls()


@dataclass(frozen=True, slots=True)
class QualityHistory:
    """Which of the last blocks were degraded. What was before the first counts as full."""

    firm: Firm = Firm()
    #: Degraded blocks among the last `window - 1`, the newest last.
    degraded: tuple[bool, ...] = ()

    @property
    def may_degrade(self) -> bool:
        """Whether the next block may be degraded and every window still have its full blocks."""
        return sum(self.degraded) + 1 <= self.firm.window - self.firm.full_min

    def after(self, degraded: bool) -> QualityHistory:
        """With one block more."""
        kept = self.firm.window - 1
        recent = (*self.degraded, degraded)
        return replace(
            self, degraded=recent[len(recent) - kept :] if len(recent) > kept else recent
        )


class Why(StrEnum):
    """Why a block gets the steps that it gets."""

    NO_DEADLINE = "NO_DEADLINE"
    NOT_MEASURED = "NOT_MEASURED"
    FITS = "FITS"
    DEGRADED_TO_FIT = "DEGRADED_TO_FIT"
    #: Others wait, and the operator gives them what contracts do not promise.
    DEGRADED_FOR_BULK = "DEGRADED_FOR_BULK"
    #: Not even the floor fits: the floor, and late.
    FLOOR_TOO_LATE = "FLOOR_TOO_LATE"
    #: One more degraded block would break the (m,k)-firm contract: full, and late.
    FIRM_TOO_LATE = "FIRM_TOO_LATE"


@dataclass(frozen=True, slots=True)
class Steps:
    """What the next block gets."""

    steps: int
    #: Fewer than the engine can do. Every such block says so to its client.
    degraded: bool
    #: Expected to be late; if it is, it counts as a miss.
    late: bool
    why: Why


def choose_steps(
    ladder: Ladder,
    slack_s: float,
    quantum_s: float,
    *,
    guard: Guard,
    history: QualityHistory | None = None,
    give_to_bulk: bool = False,
) -> Steps:
    """The highest rung whose block fits the slack.

    `slack_s` is how long the block may take, see `guard.slack_s`; infinite without a deadline.
    `quantum_s` is one measured quantum of this session, 0 where none was measured.
    `give_to_bulk`: work without a deadline waits and the operator lets it have what contracts do
    not promise; the block then gets its floor even where more would fit.
    """
    may_degrade = history is None or history.may_degrade
    fitting = ladder.highest_within(slack_s, quantum_s, guard)
    full = ladder.full_steps
    if give_to_bulk and may_degrade and fitting is not None and ladder.floor_steps < full:
        return Steps(ladder.floor_steps, True, False, Why.DEGRADED_FOR_BULK)
    if fitting == full:
        return Steps(full, False, False, _why_full(slack_s, quantum_s))
    if not may_degrade:
        return Steps(full, False, True, Why.FIRM_TOO_LATE)
    if fitting is None:
        floor = ladder.floor_steps
        return Steps(floor, floor < full, True, Why.FLOOR_TOO_LATE)
    return Steps(fitting, True, False, Why.DEGRADED_TO_FIT)


def _why_full(slack_s: float, quantum_s: float) -> Why:
    if slack_s == float("inf"):
        return Why.NO_DEADLINE
    return Why.NOT_MEASURED if quantum_s <= 0 else Why.FITS
