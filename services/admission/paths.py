"""Path book: the measured cost of every (source, target) pair, from completed transfers only."""

from __future__ import annotations

from collections.abc import Iterator

from worldline.admissibility.path_rate import PathRate, TransferSample

Pair = tuple[str, str]


class PathBook:
    """Estimates by (source, target); bounded, the one heard of longest ago leaves first."""

    def __init__(self, paths_max: int) -> None:
        self._paths_max = paths_max
        #: Oldest sample first.
        self._paths: dict[Pair, PathRate] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def get(self, source_node_id: str, target_node_id: str) -> PathRate | None:
        """The path's estimates, however old; None where nothing was ever measured."""
        return self._paths.get((source_node_id, target_node_id))

    def teach(
        self, pair: Pair, sample: TransferSample, now_s: float, age_max_ms: float
    ) -> PathRate:
        """Add one completed transfer.

        Estimates that nothing confirmed for `age_max_ms` are forgotten first: smoothing a new
        measurement into them would keep a seventh-eighths share of what is no longer so.
        """
        known = self._paths.pop(pair, None)
        if known is not None and age_ms(known, now_s) > age_max_ms:
            known = None
        path = PathRate.first(sample, now_s) if known is None else known.updated(sample, now_s)
        self._paths[pair] = path
        if len(self._paths) > self._paths_max:
            del self._paths[next(iter(self._paths))]
        return path

    def sorted(self) -> Iterator[tuple[Pair, PathRate]]:
        """Every path in the order of its names."""
        yield from sorted(self._paths.items())


def age_ms(path: PathRate, now_s: float) -> float:
    """Time since the path's last sample; never negative."""
    return max(0.0, (now_s - path.updated_at_s) * 1e3)
