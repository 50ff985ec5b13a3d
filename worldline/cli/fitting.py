"""Fitting: tables that are never wider than they may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

#: Between two columns.
_GAP = 1
#: What a column that takes the rest of a line must have to be worth showing.
_REST_MIN = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its title; numbers stand at the right. One that is `rest` is cut to what is left
    of the line.
    """

    title: str
    right: bool = False
    rest: bool = False


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, drop: Sequence[str]
) -> Table:
    """A table of at most `width` cells a line.

    Columns go in the order of `drop` until what is left fits; where even that does not, cells are
    cut at the end, with a mark.
    """
    widths = {
        column.title: max(cell_len(cell) for cell in (column.title, *cells))
        for column, cells in zip(columns, _columns_of(rows, len(columns)), strict=True)
    }
    for column in columns:
        if column.rest:
            widths[column.title] = min(widths[column.title], _REST_MIN)
    for title in drop:
        if _total(widths.values()) > width:
            widths.pop(title, None)
    return _made(columns, rows, widths, width)


def _made(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: dict[str, int], width: int
) -> Table:
    kept = [at for at, column in enumerate(columns) if column.title in widths]
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    spare = width - _total(widths.values())
    for at in kept:
        column = columns[at]
        own = widths[column.title] + (max(0, spare) if column.rest else 0)
        table.add_column(
            column.title,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if column.right else "left",
            min_width=min(own, width) if spare >= 0 and not column.rest else None,
            max_width=own,
        )
    for row in rows:
        table.add_row(*(Text(row[at]) for at in kept))
    return table


def _columns_of(rows: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    return [[row[at] for row in rows] for at in range(count)]


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + _GAP * max(0, len(found) - 1)
