"""Table: every suite of the bench, and the choice of rows among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fnmatch import fnmatchcase

from bench.control_plane import ControlPlane
from bench.cpu import RACES, CpuRace
from bench.gpu.suite import gpu_races
from bench.rounds import Say
from bench.row import Row, RowSpec
from bench.suite import Options, Suite


def suites() -> list[Suite]:
    """In the order of the table."""
    return [*(CpuRace(lanes) for lanes in RACES), *gpu_races(), ControlPlane()]


def chosen(specs: Sequence[RowSpec], patterns: Sequence[str]) -> frozenset[str]:
    """Names that match a pattern: a glob, or without `*` a part of the name. None: all.

    Raises:
        ValueError: a pattern matches no row.
    """
    names = [spec.name for spec in specs]
    found: set[str] = set()
    for pattern in patterns:
        wanted = pattern if "*" in pattern else f"*{pattern}*"
        matching = {name for name in names if fnmatchcase(name, wanted)}
        if not matching:
            raise ValueError(f"{pattern!r} matches no row; --list shows them all")
        found |= matching
    return frozenset(found if patterns else names)


def measure(
    available: Sequence[Suite], wanted: frozenset[str], options: Options, say: Say
) -> list[Row]:
    """Every wanted row, suite by suite."""
    rows = [row for suite in available for row in suite.measure(wanted, options, say)]
    return [_unjudged(row) for row in rows] if options.quick else rows


def _unjudged(row: Row) -> Row:
    """Bars are for the whole payload."""
    return dataclasses.replace(row, spec=dataclasses.replace(row.spec, bar=None))
