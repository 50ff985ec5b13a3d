"""Rates: rows computed from a race: what somebody did, and one against others. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bench.rounds import Series, best
from bench.row import Row, RowSpec


@dataclass(frozen=True, slots=True)
class RateRow:
    """What one contestant reached, in GB/s (10^9)."""

    spec: RowSpec
    contestant: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Who must run for it."""
        return (self.contestant,)


@dataclass(frozen=True, slots=True)
class TimeRow:
    """What one contestant took, in milliseconds."""

    spec: RowSpec
    contestant: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Who must run for it."""
        return (self.contestant,)


@dataclass(frozen=True, slots=True)
class FigureRow:
    """What one contestant's runs said of themselves, under the name of `figure`."""

    spec: RowSpec
    contestant: str
    figure: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Who must run for it."""
        return (self.contestant,)


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One contestant over the best of some others in the same race: rates, or else times."""

    spec: RowSpec
    over: str
    under: tuple[str, ...]
    of_times: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Who must run for it."""
        return (self.over, *self.under)


RaceRow = RateRow | TimeRow | FigureRow | RatioRow


def needed(rows: Iterable[RaceRow]) -> set[str]:
    """Every contestant that some row needs."""
    return {name for row in rows for name in row.needs}


def evaluate(
    row: RaceRow, table: Mapping[str, Series], size_bytes: int, own: Collection[str]
) -> Row:
    """The row from what everybody did.

    One of our `own` that broke makes the row fail; a peer that broke or is missing skips it.
    """
    if isinstance(row, RatioRow):
        return _ratio(row, table, own)
    series = table[row.contestant]
    if not series.complete:
        return _without(row.spec, row.contestant, series, own)
    if isinstance(row, FigureRow):
        values = series.figures[row.figure]
        detail = f"{min(values):.2f} to {max(values):.2f}"
        return row.spec.measured(statistics.median(values), len(values), detail)
    timed = isinstance(row, TimeRow)
    value = series.median_s * 1e3 if timed else series.rate_gb_per_s(size_bytes)
    return row.spec.measured(value, len(series.seconds), series.spread())


def _ratio(row: RatioRow, table: Mapping[str, Series], own: Collection[str]) -> Row:
    over = table[row.over]
    if not over.complete:
        return _without(row.spec, row.over, over, own)
    chosen = best(table, row.under)
    if chosen is None:
        return _without(row.spec, row.under[0], table[row.under[0]], own)
    under = table[chosen]
    times = over.median_s / under.median_s
    return row.spec.measured(
        times if row.of_times else 1 / times,
        min(len(over.seconds), len(under.seconds)),
        f"{row.over} {over.median_s * 1e3:.1f} ms, {chosen} {under.median_s * 1e3:.1f} ms",
    )


def _without(spec: RowSpec, name: str, series: Series, own: Collection[str]) -> Row:
    if series.failed is not None and name in own:
        return spec.failed(f"{name}: {series.failed}")
    return spec.skipped(f"{name}: {series.skipped or series.failed or 'did not run'}")
