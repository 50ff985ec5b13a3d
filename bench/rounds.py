"""Rounds: contestants take turns, A B C A B C, so that a drift of the machine meets them all.

Pure but for the contestants themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.contestant import Contestant, Failed, Skipped

Say = Callable[[str], None]


@dataclass(slots=True)
class Series:
    """What one contestant did: a time per round, or why not."""

    seconds: list[float] = field(default_factory=list)
    skipped: str | None = None
    failed: str | None = None
    note: str = ""
    #: What each run said of itself beside its time.
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether its times count."""
        return bool(self.seconds) and self.skipped is None and self.failed is None

    @property
    def median_s(self) -> float:
        """Of a complete series."""
        return statistics.median(self.seconds)

    def rate_gb_per_s(self, size_bytes: int) -> float:
        """Payload over the median time, 10^9 bytes a second."""
        return size_bytes / self.median_s / 1e9

    def spread(self) -> str:
        """The median and the extremes, for people."""
        low, high = min(self.seconds), max(self.seconds)
        text = f"median {_ms(self.median_s)} of {len(self.seconds)}, {_ms(low)} to {_ms(high)}"
        return f"{text}; {self.note}" if self.note else text


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Round by round, everybody once in each, always in the same order."""
    for number in range(rounds):
        for name in names:
            yield number, name


def race(contestants: Sequence[Contestant], rounds: int, say: Say) -> dict[str, Series]:
    """Let all of them run `rounds` times in turn; every one is closed at the end.

    Who cannot run is skipped; who breaks is out for the rest, and its times do not count.
    """
    table = {contestant.name: Series() for contestant in contestants}
    by_name = {contestant.name: contestant for contestant in contestants}
    try:
        for name, contestant in by_name.items():
            say(f"{name}: preparing")
            _try(table[name], contestant.prepare)
            _report(name, table[name], say)
        for number, name in turns(list(by_name), rounds):
            series = table[name]
            if series.skipped is not None or series.failed is not None:
                continue
            if len(series.seconds) == by_name[name].runs_max:
                continue
            _try(series, partial(_time, series, by_name[name]))
            shown = _ms(series.seconds[-1]) if series.complete else ""
            say(f"round {number + 1} of {rounds}: {name} {shown}".rstrip())
            _report(name, series, say)
    finally:
        for contestant in contestants:
            contestant.close()
    return table


def best(table: Mapping[str, Series], names: Sequence[str]) -> str | None:
    """Who of these had the smallest median; None where none of them finished."""
    finished = [name for name in names if name in table and table[name].complete]
    return min(finished, key=lambda name: table[name].median_s, default=None)


def _try(series: Series, action: Callable[[], object]) -> None:
    try:
        action()
    except Skipped as reason:
        series.skipped = str(reason)
    except Failed as reason:
        series.failed = str(reason)


def _time(series: Series, contestant: Contestant) -> None:
    series.seconds.append(contestant.run())
    series.note = contestant.note
    for name, value in contestant.figures.items():
        series.figures.setdefault(name, []).append(value)


def _report(name: str, series: Series, say: Say) -> None:
    if series.skipped is not None:
        say(f"{name}: skipped: {series.skipped}")
    if series.failed is not None:
        say(f"{name}: failed: {series.failed}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
