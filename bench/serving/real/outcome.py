"""Outcome: what became of one trial, and of all trials of an arm. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """One block as its client saw it, and when."""

    at: float
    block_index: int
    late_ms: float
    releases_skipped: int
    degraded: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the time from the opening of the interactive grid to the end of the trial.

    A block that is unfinished at the end is in nobody's figures, as in the simulation.
    """

    blocks: int
    missed: int
    skipped: int
    degraded: int
    bulk_blocks: int
    #: Of every quantum, the interactive session's and bulk's.
    quanta_ms: tuple[float, ...]

    @property
    def missed_share(self) -> float:
        """Of all interactive blocks."""
        return self.missed / self.blocks if self.blocks else 0.0

    @property
    def degraded_share(self) -> float:
        """Of all interactive blocks."""
        return self.degraded / self.blocks if self.blocks else 0.0

    def to_json(self) -> dict[str, object]:
        """For machines."""
        ordered = sorted(self.quanta_ms)
        return {
            "blocks": self.blocks,
            "missed": self.missed,
            "skipped": self.skipped,
            "degraded": self.degraded,
            "bulk_blocks": self.bulk_blocks,
            "missed_share": self.missed_share,
            "degraded_share": self.degraded_share,
            "quanta": len(ordered),
            "quantum_p50_ms": quantile(ordered, 0.5) if ordered else None,
            "quantum_p95_ms": quantile(ordered, 0.95) if ordered else None,
        }


def outcome(
    interactive: Sequence[Seen],
    bulk: Sequence[Seen],
    quanta_ms: Sequence[float],
    *,
    first: int,
    since: float,
    until: float,
) -> Outcome:
    """Of what was seen between two moments; `first` is the first block that had a deadline."""
    held = [each for each in interactive if each.block_index >= first and each.at <= until]
    return Outcome(
        blocks=len(held),
        missed=sum(each.late_ms > 0 for each in held),
        skipped=sum(each.releases_skipped for each in held),
        degraded=sum(each.degraded for each in held),
        bulk_blocks=sum(since <= each.at <= until for each in bulk),
        quanta_ms=tuple(quanta_ms),
    )


@dataclass(frozen=True, slots=True)
class Trials:
    """One arm on one rung."""

    arm: str
    outcomes: tuple[Outcome, ...]

    def mean(self, quantity: str) -> float:
        """Of an `Outcome`'s quantity, over the trials."""
        return statistics.mean(float(getattr(each, quantity)) for each in self.outcomes)

    def worst(self, quantity: str) -> float:
        """The largest of any trial."""
        return max(float(getattr(each, quantity)) for each in self.outcomes)

    def quantum_ms(self, part: float) -> float:
        """That quantile of the quanta of all trials; 0 without any."""
        ordered = sorted(each for one in self.outcomes for each in one.quanta_ms)
        return quantile(ordered, part) if ordered else 0.0

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {"arm": self.arm, "trials": [each.to_json() for each in self.outcomes]}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that so many are not above (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
