"""Tally: what one policy made of one load, over all seeds."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass

from bench.fabric.cell import GBIT_PER_S
from bench.fabric.run import Outcome

#: Seeds of missed moves that a row names: enough to look at one.
_SEEDS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the experiment; counts are means over its seeds, of 72 offers each.

    `oracle_share` is on-time moves over those of the oracle, `bound_share` over what no plan could
    exceed; `later_share` is the part of all rejects that came after the decision.
    """

    load: float
    policy: str
    seeds: int
    admitted: float
    on_time: float
    missed: float
    rejected: float
    rejected_later: float
    goodput_gbit_per_s: float
    stalls: float
    oracle_share: float | None
    bound_share: float | None
    later_share: float
    reject_reasons: dict[str, float]
    missed_in_seeds: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Best:
    """Moves on time, as means over the seeds: of the oracle, and at most."""

    oracle: float
    bound: float


def on_time(outcomes: dict[int, Outcome]) -> float:
    """Moves on time, as a mean over the seeds."""
    return sum(move.on_time for o in outcomes.values() for move in o.done) / len(outcomes)


def tally(load: float, policy: str, outcomes: dict[int, Outcome], best: Best) -> Row:
    """Means over the seeds; goodput is the median over all admitted moves, as in the paper."""
    seeds = len(outcomes)
    done = [move for outcome in outcomes.values() for move in outcome.done]
    in_time = on_time(outcomes)
    rejected = sum(o.rejected.total() for o in outcomes.values()) / seeds
    later = sum(o.rejected_later.total() for o in outcomes.values()) / seeds
    reasons: Counter[str] = Counter()
    for outcome in outcomes.values():
        reasons += outcome.rejected + outcome.rejected_later
    missed_in = [seed for seed, o in outcomes.items() if not all(move.on_time for move in o.done)]
    goodputs = [move.bytes_per_s / GBIT_PER_S for move in done]
    return Row(
        load=load,
        policy=policy,
        seeds=seeds,
        admitted=len(done) / seeds,
        on_time=in_time,
        missed=len(done) / seeds - in_time,
        rejected=rejected,
        rejected_later=later,
        goodput_gbit_per_s=statistics.median(goodputs) if goodputs else 0.0,
        stalls=sum(o.episodes for o in outcomes.values()) / seeds,
        oracle_share=in_time / best.oracle if best.oracle else None,
        bound_share=in_time / best.bound if best.bound else None,
        later_share=later / (rejected + later) if rejected + later else 0.0,
        reject_reasons={name: count / seeds for name, count in sorted(reasons.items())},
        missed_in_seeds=tuple(missed_in[:_SEEDS_SHOWN]),
    )
