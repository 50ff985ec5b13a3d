"""Tables that are never wider than they may be, at any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from worldline.cli.fitting import Column, fitted

COLUMNS = (
    Column("SESSION"),
    Column("STATE"),
    Column("BYTES", right=True),
    Column("WHY", rest=True),
)
DROP = ("WHY", "BYTES")
ROW = ("session-1", "live", "1.43 MB", "because " * 5)


def printed(columns: tuple[Column, ...], rows: list[tuple[str, ...]], width: int) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(fitted(columns, rows, width, DROP))
    return capture.get().splitlines()


def test_what_fits_is_whole_and_the_rest_is_cut_with_a_mark() -> None:
    head, row = printed(COLUMNS, [ROW], 60)
    assert head.split() == ["SESSION", "STATE", "BYTES", "WHY"]
    assert row.startswith("session-1 live  1.43 MB because because")
    assert row.rstrip().endswith("…")
    assert cell_len(row.rstrip()) <= 60
    head, row = printed(COLUMNS, [ROW], 100)
    assert row.rstrip().endswith("because")


def test_columns_go_in_the_order_that_is_said() -> None:
    assert printed(COLUMNS, [ROW], 40)[0].split() == ["SESSION", "STATE", "BYTES", "WHY"]
    assert printed(COLUMNS, [ROW], 39)[0].split() == ["SESSION", "STATE", "BYTES"]
    assert printed(COLUMNS, [ROW], 23)[0].split() == ["SESSION", "STATE", "BYTES"]
    assert printed(COLUMNS, [ROW], 22)[0].split() == ["SESSION", "STATE"]
    assert printed(COLUMNS, [ROW], 15)[1].rstrip() == "session-1 live"


cells = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=40)


@given(
    rows=st.lists(st.tuples(cells, cells, cells, cells), min_size=1, max_size=5),
    width=st.integers(12, 200),
)
def test_no_line_is_longer_than_it_may_be(rows: list[tuple[str, ...]], width: int) -> None:
    lines = printed(COLUMNS, rows, width)
    assert len(lines) == 1 + len(rows)
    assert all(cell_len(line.rstrip()) <= width for line in lines)
