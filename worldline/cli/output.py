"""Output: JSON for scripts, tables for people, one line for an error."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from worldline.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    IntegrityError,
    InvalidInput,
    NotFound,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.sdk.move_record import MoveRecord
from worldline.sdk.records import BlockCounts
from worldline.sdk.rejected import Rejected
from worldline.verdict import RejectReason

#: rich assumes 80 columns where nobody looks; tables in files and pipes may be wider.
_PIPED_COLUMNS = 160


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    fixed = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, soft_wrap=True, width=_PIPED_COLUMNS if fixed else None)


#: Answers; never progress, so that `--json` can be piped.
console = _console()
#: Progress and errors.
err_console = _console(stderr=True)

#: A session that went on where only T1 holds, moved or resumed.
TIER_DROPPED = "tier dropped: the session was at T0 and continues at T1"

#: 1 is any other error of Worldline, 2 is also typer's for a wrong command line.
_EXIT_STATUS: tuple[tuple[type[WorldlineError], int], ...] = (
    (Rejected, 3),
    (InvalidInput, 2),
    (NotFound, 4),
    (Unavailable, 5),
    (TransferFailed, 5),
    (DeadlineExceeded, 5),
    (CapacityExhausted, 5),
    (IntegrityError, 6),
)
_DIGEST_NAMES = ("digest", "source_digest", "target_digest", "state_digest", "frames_digest")


def exit_status(error: WorldlineError) -> int:
    """The exit status that tells kinds of errors apart."""
    return next((status for cls, status in _EXIT_STATUS if isinstance(error, cls)), 1)


def move_exit_status(record: MoveRecord) -> int:
    """0 only for a committed move; 3 for a reject, as for any other."""
    return {"committed": 0, "rejected": 3}.get(record.outcome, 1)


def error_line(error: WorldlineError) -> str:
    """One line: reason, field or leaf, what happened and the way out."""
    named = [error.field, error.leaf and f"leaf {error.leaf}"]
    if error.granule is not None:
        named.append(f"granule {error.granule}")
    where = ", ".join(name for name in named if name)
    retry = f" (retry after {error.retry_after_ms} ms)" if error.retry_after_ms else ""
    named_reason = f"{error.reason}{f' [{where}]' if where else ''}"
    return f"{named_reason}: {error.message}{retry}{_way_out(error)}"


def _way_out(error: WorldlineError) -> str:
    """In this command line's words, where the message can only speak in general."""
    if error.reason != RejectReason.STATE_TOO_LARGE.name:
        return ""
    state_bytes = error.verdict.numbers.get("state_bytes") if isinstance(error, Rejected) else None
    slot_mb = "N" if state_bytes is None else str(math.ceil(state_bytes / (1 << 20)))
    return f"; for a local cluster: `worldline up --slot-mb {slot_mb}`"


def print_error(error: WorldlineError) -> None:
    """To stderr; markup in messages is not interpreted."""
    sys.stderr.write(f"worldline: {error_line(error)}\n")


def jsonable(value: Any) -> Any:
    """Records, enums, bytes and digests as what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _field(field.name, getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(jsonable(each) for each in value)
    return value


def move_jsonable(record: MoveRecord) -> dict[str, Any]:
    """A move's record with its outcome spelled out."""
    return {"outcome": record.outcome, "reason": record.reason, **jsonable(record)}


def print_json(value: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(json.dumps(jsonable(value), indent=2) + "\n")


def print_json_line(value: Any) -> None:
    """One document on one line, at once: for streams."""
    sys.stdout.write(json.dumps(jsonable(value)) + "\n")
    sys.stdout.flush()


#: How blocks kept to their contracts, as `counts_told` says it.
COUNTED = ("DEGRADED", "SKIPPED", "LATE")


def counts_told(counts: BlockCounts | None) -> tuple[str, str, str]:
    """Degraded blocks, skipped releases, late blocks; dashes where nobody has told of them."""
    if counts is None:
        return "-", "-", "-"
    return str(counts.degraded_blocks), str(counts.releases_skipped), str(counts.missed_periods)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str = "none",
    *,
    drop: Sequence[str] = (),
) -> None:
    """A table without frames; `empty` where there are no rows.

    No cell is ever cut: an id that lacks its end is of no use. Where the terminal is too narrow
    the columns of `drop` are left out, in that order, and then lines may be longer than it is.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        console.print(empty)
        return
    widths = {
        name: max(cell_len(line) for row in (columns, *cells) for line in row[at].split("\n"))
        for at, name in enumerate(columns)
    }
    left_out: list[str] = []
    for name in drop:
        if _table_width(widths) > console.width:
            left_out.append(name)
            del widths[name]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in widths:
        table.add_column(name, no_wrap=True)
    for row in cells:
        table.add_row(
            *(Text(cell) for name, cell in zip(columns, row, strict=True) if name in widths)
        )
    print_whole(table, _table_width(widths))
    if left_out:
        names = ", ".join(left_out)
        err_console.print(f"(too narrow for {names}; --json has all)", markup=False)


def print_whole(table: Table, width: int) -> None:
    """A table of that width, in lines longer than the terminal's where need be."""
    usual = console.width
    console.width = max(usual, width)
    try:
        console.print(table)
    finally:
        console.width = usual


def _table_width(widths: Mapping[str, int]) -> int:
    """With one space between columns."""
    return sum(widths.values()) + len(widths)


def hex_digest(digest: int | None) -> str:
    """64 bits as 16 hex digits; a dash where there is none."""
    return "-" if digest is None else f"{digest:016x}"


def counted(count: int, noun: str) -> str:
    """1 session, 2 sessions."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def human_bytes(size_bytes: float) -> str:
    """1.67 GB and the like; decimal, as rates are."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def _field(name: str, value: Any) -> Any:
    # JSON readers lose the low bits of 64-bit integers.
    if name in _DIGEST_NAMES and isinstance(value, int):
        return hex_digest(value)
    return jsonable(value)
