"""Path book: what every (source, target) pair was measured to cost, and what it did to bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.admission.suspicion import Suspicions
from worldline.admissibility.bounds import DURATION_MS_MAX, RATE_BYTES_PER_S_MIN
from worldline.admissibility.condition import PathCost
from worldline.admissibility.estimate import Estimate
from worldline.admissibility.path_rate import PathCharge, PathRate, TransferSample

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """Moves over one path that ended, however, and those whose bytes were found to differ.

    One corrupted move in 100,000 vanishes in any average over paths; here its path stands out.
    """

    ended: int = 0
    corrupted: int = 0

    def with_move(self, *, corrupted: bool) -> Record:
        """One more."""
        return Record(self.ended + 1, self.corrupted + corrupted)


class PathBook:
    """Estimates by (source, target); bounded, the one heard of longest ago leaves first."""

    def __init__(self, paths_max: int) -> None:
        self._paths_max = paths_max
        #: Oldest sample first.
        self._paths: dict[Pair, PathRate] = {}
        #: What each of them charges, for the many comparisons that one sample is good for.
        self._charges: dict[Pair, PathCharge] = {}
        self._suspicions = Suspicions(paths_max)
        #: What the last committed move's path is believed to take around its wire.
        self._usual_overhead: Estimate | None = None
        #: The path used longest ago first; forgotten apart from its costs, which age.
        self._records: dict[Pair, Record] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def get(self, source_node_id: str, target_node_id: str) -> PathRate | None:
        """The path's estimates, however old; None where nothing was ever measured."""
        return self._paths.get((source_node_id, target_node_id))

    def charged_ms(
        self, pair: Pair, transfer_bytes: int, now_s: float, age_max_ms: float
    ) -> float | None:
        """What a move of that size is charged; None where the path is unmeasured or too old."""
        path = self._paths.get(pair)
        if path is None:
            return None
        staleness = age_ms(path, now_s) / age_max_ms
        if staleness > 1:
            return None
        suspected = self.suspected(pair, now_s)
        return suspected * self._charges[pair].move_ms(transfer_bytes, staleness)

    def charged_cost(self, pair: Pair, now_s: float, age_max_ms: float) -> PathCost | None:
        """The same as a cost: every part, as many times as it is suspected."""
        path = self._paths.get(pair)
        if path is None or age_ms(path, now_s) > age_max_ms:
            return None
        cost = path.charged_cost_at(age_ms(path, now_s), age_max_ms)
        suspected = self.suspected(pair, now_s)
        if suspected == 1.0:
            return cost
        return PathCost(
            rate_bytes_per_s=max(cost.rate_bytes_per_s / suspected, RATE_BYTES_PER_S_MIN),
            setup_ms=min(cost.setup_ms * suspected, DURATION_MS_MAX),
        )

    def suspected(self, pair: Pair, now_s: float) -> float:
        """How many times as much is charged, because another path of one of its nodes surprised."""
        path = self._paths.get(pair)
        return 1.0 if path is None else self._suspicions.ratio(pair, path.updated_at_s, now_s)

    def teach(
        self, pair: Pair, sample: TransferSample, now_s: float, age_max_ms: float
    ) -> PathRate:
        """Add one completed transfer.

        Estimates that nothing confirmed for `age_max_ms` are forgotten first: smoothing a new
        measurement into them would keep a seventh-eighths share of what is no longer so.
        """
        known = self._paths.pop(pair, None)
        if known is not None and age_ms(known, now_s) <= age_max_ms:
            path = known.updated(sample, now_s)
            self._suspicions.learn(pair, known, path)
        else:
            # Around the wire moves take much the same everywhere, and probes do not say what.
            usual = self._usual_overhead if known is None else known.overhead
            path = PathRate.first(sample, now_s, usual or self._usual_overhead)
        if sample.frozen_ms > 0:
            self._usual_overhead = path.overhead
        self._paths[pair] = path
        self._charges[pair] = path.charge
        if len(self._paths) > self._paths_max:
            forgotten = next(iter(self._paths))
            del self._paths[forgotten], self._charges[forgotten]
        return path

    def note(self, pair: Pair, *, corrupted: bool) -> None:
        """Count one move that ended."""
        record = self._records.pop(pair, Record())
        self._records[pair] = record.with_move(corrupted=corrupted)
        if len(self._records) > self._paths_max:
            # A path that never harmed anybody goes first: what it did is no loss.
            clean = (one for one, known in self._records.items() if not known.corrupted)
            del self._records[next(clean, next(iter(self._records)))]

    def record(self, pair: Pair) -> Record:
        """What is known of its moves."""
        return self._records.get(pair, Record())

    def sorted(self) -> Iterator[tuple[Pair, PathRate]]:
        """Every path in the order of its names."""
        yield from sorted(self._paths.items())


def age_ms(path: PathRate, now_s: float) -> float:
    """Time since the path's last sample; never negative."""
    return max(0.0, (now_s - path.updated_at_s) * 1e3)
