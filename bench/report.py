"""Report: the table for people and the document for machines. Pure but for writing the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.row import Row, RowSpec

_HEADINGS = ("ROW", "VALUE", "UNIT", "BAR", "OK", "VERIFIED", "REPEATS", "NOTE")
_RIGHT = frozenset({"VALUE", "REPEATS"})
#: What follows a note's first line is in the document.
_NOTE_COLUMNS = 120
NOT_COMPARABLE = "quick: a small payload and few repeats; no figure here can be compared with any"


def table(rows: Sequence[Row]) -> str:
    """All rows in columns; notes are cut, everything else is whole."""
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS) - 1)]
    return "\n".join(_line(cells, widths) for cells in lines)


def listing(specs: Sequence[RowSpec]) -> str:
    """Names, units and bars of rows that are not measured yet."""
    lines = [_HEADINGS[:1] + _HEADINGS[2:4]]
    lines += [(spec.name, spec.unit, "" if spec.bar is None else str(spec.bar)) for spec in specs]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join(
        f"{name:{widths[0]}}  {unit:{widths[1]}}  {bar}".rstrip() for name, unit, bar in lines
    )


def summary(rows: Sequence[Row]) -> str:
    """One line: bars met and missed, rows skipped."""
    met = sum(row.ok is True for row in rows)
    missed = [row.spec.name for row in rows if row.ok is False]
    skipped = sum(row.skipped is not None for row in rows)
    text = f"{met} bars met, {len(missed)} missed, {skipped} rows skipped"
    return f"{text}: {', '.join(missed)}" if missed else text


def document(
    rows: Sequence[Row],
    *,
    machine: dict[str, Any],
    versions: dict[str, str],
    commit: tuple[str, bool],
    started_at: str,
    seed: int,
    comparable: bool,
) -> dict[str, Any]:
    """What `latest.json` holds."""
    return {
        "machine": machine,
        "versions": versions,
        "commit": commit[0],
        "dirty": commit[1],
        "started_at": started_at,
        "seed": seed,
        "comparable": comparable,
        "rows": [row.to_json() for row in rows],
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the document; a reader sees the old one or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(content, indent=2) + "\n")
    beside.replace(path)


def _cells(row: Row) -> tuple[str, ...]:
    spec = row.spec
    return (
        spec.name,
        "-" if row.value is None else number(row.value),
        spec.unit,
        "" if spec.bar is None else str(spec.bar),
        {True: "yes", False: "NO", None: ""}[row.ok],
        {True: "yes", False: "no", None: ""}[spec.verified],
        str(row.repeats) if row.repeats else "",
        _note(row),
    )


def number(value: float) -> str:
    """Three digits or so, for people."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def _note(row: Row) -> str:
    text = f"skipped: {row.skipped}" if row.skipped is not None else row.detail
    line = " ".join(text.split())
    return line if len(line) <= _NOTE_COLUMNS else line[: _NOTE_COLUMNS - 3] + "..."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
        for cell, width, heading in zip(cells, widths, _HEADINGS, strict=False)
    ]
    return "  ".join([*padded, cells[-1]]).rstrip()
