"""Path book: what every (source, target) pair was measured to cost, and what it did to bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from services.admission.suspicion import Suspicions
from worldline.admissibility.bounds import DURATION_MS_MAX, RATE_BYTES_PER_S_MIN
from worldline.admissibility.condition import PathCost, t_migrate_ms
from worldline.admissibility.estimate import Estimate
from worldline.admissibility.path_rate import PathCharge, PathRate, TransferSample

Pair = tuple[str, str]


class Record(NamedTuple):
    """Moves over one path that ended, however, and those whose bytes were found to differ.

    One corrupted move in 100,000 vanishes in any average over paths; here its path stands out.
    """

    ended: int = 0
    corrupted: int = 0

    def with_move(self, *, corrupted: bool) -> Record:
        """One more."""
        return Record(self.ended + 1, self.corrupted + corrupted)


class Charged(NamedTuple):
    """What a move over a measured path is charged now, from the grant of the wire to its commit."""

    move_ms: float
    rate_bytes_per_s: float
    setup_ms: float

    @property
    def cost(self) -> PathCost:
        """The same without the size of the move."""
        return PathCost(self.rate_bytes_per_s, self.setup_ms)


class PathBook:
    """Estimates by (source, target); bounded, the one heard of longest ago leaves first."""

    def __init__(self, paths_max: int) -> None:
        self._paths_max = paths_max
        #: Oldest sample first.
        self._paths: dict[Pair, PathRate] = {}
        #: What each of them charges, for the many decisions that one sample is good for; by source
        #: and there by target, since a move asks for many targets from one source.
        self._charges: dict[str, dict[str, PathCharge]] = {}
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

    def charged(
        self,
        source_node_id: str,
        target_node_ids: Iterable[str],
        state_bytes: int,
        now_s: float,
        age_max_ms: float,
    ) -> dict[str, Charged]:
        """What a move of that size is charged over each of the paths that was measured, and not too
        long ago; by target.

        Every part at its mean plus deviations, which widen with age, and as many times as the path
        is suspected.
        """
        found: dict[str, Charged] = {}
        charges = self._charges.get(source_node_id)
        if charges is None:
            return found
        for target in target_node_ids:
            charge = charges.get(target)
            if charge is None:
                continue
            age_s = now_s - charge.updated_at_s
            staleness = age_s * 1e3 / age_max_ms if age_s > 0 else 0.0
            if staleness > 1:
                continue
            rate, setup_ms = charge.at(staleness)
            suspected = self._suspicions.ratio((source_node_id, target), charge.updated_at_s, now_s)
            if suspected > 1.0:
                rate = max(rate / suspected, RATE_BYTES_PER_S_MIN)
                setup_ms = min(setup_ms * suspected, DURATION_MS_MAX)
            found[target] = Charged(t_migrate_ms(state_bytes, rate, setup_ms), rate, setup_ms)
        return found

    def suspected(self, pair: Pair, now_s: float) -> float:
        """How many times as much is charged, because another path of one of its nodes surprised."""
        path = self.get(*pair)
        return 1.0 if path is None else self._suspicions.ratio(pair, path.updated_at_s, now_s)

    def teach(
        self, pair: Pair, sample: TransferSample, now_s: float, age_max_ms: float
    ) -> PathRate:
        """Add one completed transfer.

        Estimates that nothing confirmed for `age_max_ms` are forgotten first: smoothing a new
        measurement into them would keep a seventh-eighths share of what is no longer so.
        """
        known = self.get(*pair)
        if known is not None and age_ms(known, now_s) <= age_max_ms:
            path = known.updated(sample, now_s)
            self._suspicions.learn(pair, known, path)
        else:
            # Around the wire moves take much the same everywhere, and probes do not say what.
            usual = self._usual_overhead if known is None else known.overhead
            path = PathRate.first(sample, now_s, usual or self._usual_overhead)
        if sample.frozen_ms > 0:
            self._usual_overhead = path.overhead
        self._keep(pair, path)
        return path

    def _keep(self, pair: Pair, path: PathRate) -> None:
        source, target = pair
        self._paths.pop(pair, None)
        self._paths[pair] = path
        self._charges.setdefault(source, {})[target] = path.charge
        if len(self._paths) > self._paths_max:
            source, target = next(iter(self._paths))
            del self._paths[source, target], self._charges[source][target]
            if not self._charges[source]:
                del self._charges[source]

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
