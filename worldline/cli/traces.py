"""Trace: the waterfall of one move."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from worldline.cli.common import JsonOption, MoveArgument, PlacementOption, connected, run
from worldline.cli.output import console, err_console, print_json, print_whole
from worldline.cli.strip import check_writable
from worldline.cli.trace_svg import draw_trace
from worldline.cli.trace_tree import event_facts, facts, in_order, spoken_events
from worldline.errors import NotFound
from worldline.sdk import Client, Trace, TraceSpan

_ROOT = "move"
#: Spans leave their process up to a fifth of a second after they end.
_SETTLE_S = 2.0
_POLL_S = 0.1
_BAR_CELLS_MAX = 48
#: A bar shorter than this says nothing; then the facts beside it go first.
_BAR_CELLS_MIN = 16


def trace(
    move_id: MoveArgument,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw it: a picture for a browser or a report."),
    ] = None,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what every service did during a move, as a waterfall."""

    async def work() -> int:
        if svg is not None:
            check_writable(svg, "--svg")
        async with connected(placement) as client:
            found = await settled_trace(client, move_id)
        if not found.spans:
            raise NotFound(
                f"no spans of move {move_id} are kept; the oldest traces are dropped",
                reason="TRACE_GONE",
                field="move_id",
            )
        if svg is not None:
            svg.write_text(draw_trace(found, move_id), encoding="utf-8")
            err_console.print(f"drawn to {svg}", markup=False)
        if as_json:
            print_json(found)
        else:
            print_waterfall(found)
        return 0

    run(work)


async def settled_trace(client: Client, move_id: str, settle_s: float = _SETTLE_S) -> Trace:
    """The trace once its root span has arrived, or what there is after `settle_s`."""
    deadline_s = time.monotonic() + settle_s
    while True:
        found = await client.trace(move_id)
        ended = any(span.name == _ROOT for span in found.spans)
        if ended or time.monotonic() >= deadline_s:
            return found
        await asyncio.sleep(_POLL_S)


def print_waterfall(found: Trace) -> None:
    """One line a span, children below their parent, bars on one time axis."""
    total_ms = max(span.start_offset_ms + span.duration_ms for span in found.spans)
    axis = f"0 to {total_ms:.1f} ms"
    head = ("SPAN", "SERVICE", "START MS", "MS")
    rows = [
        (
            "  " * depth + span.name,
            span.service,
            f"{span.start_offset_ms:.1f}",
            f"{span.duration_ms:.1f}",
        )
        for depth, span in in_order(found.spans)
    ]
    spans = [span for _, span in in_order(found.spans)]
    # One space after each column.
    numbers_width = sum(max(map(cell_len, column)) + 1 for column in zip(head, *rows, strict=True))
    facts_width = max(cell_len(facts(span)) for span in spans)
    cells, with_facts = bar_cells(console.width - numbers_width, facts_width, cell_len(axis))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in head:
        table.add_column(column, no_wrap=True, justify="right" if column.endswith("MS") else "left")
    table.add_column(axis, no_wrap=True)
    table.add_column("", no_wrap=True)
    for row, span in zip(rows, spans, strict=True):
        style = "red" if span.status == "error" else "cyan" if row[0].startswith(" ") else "green"
        table.add_row(
            *map(escape, row),
            f"[{style}]{bar(span, total_ms, cells)}[/]",
            escape(facts(span)) if with_facts else "",
        )
    console.print(f"trace {found.trace_id}", markup=False)
    print_whole(table, numbers_width + max(cells, cell_len(axis)) + 2)
    for one, event in spoken_events(spans):
        said = f"{one.name} {event.name}: {event_facts(event.attributes)}".removesuffix(": ")
        console.print(f"at {event.offset_ms:.1f} ms {said}", markup=False, highlight=False)


def bar_cells(left: int, facts_width: int, axis_width: int) -> tuple[int, bool]:
    """Cells of a bar and whether facts fit beside it, in the `left` cells beside the numbers.

    The bar shrinks first, then the facts go: the numbers always stay.
    """
    least = max(_BAR_CELLS_MIN, axis_width)
    beside = left - facts_width - 2
    if beside >= least:
        return min(_BAR_CELLS_MAX, beside), True
    return min(_BAR_CELLS_MAX, max(_BAR_CELLS_MIN, left - 2)), False


def bar(span: TraceSpan, total_ms: float, cells: int) -> str:
    """The span on an axis of `cells` characters; at least one mark, never beyond the axis."""
    if total_ms <= 0:
        return "█"
    start = min(cells - 1, int(span.start_offset_ms / total_ms * cells))
    length = max(1, round(span.duration_ms / total_ms * cells))
    return " " * start + "█" * min(length, cells - start)
