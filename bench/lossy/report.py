"""Report: the table for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.columns import columns
from bench.lossy.fidelity import CEILING_DB
from bench.lossy.row import Row

_HEADINGS = (
    "HANDLE", "", "SAVED", "BYTES OFF", "SEEN AT", "dB NEXT", "dB LAST", "dB WORST", "RECOVERED",
)  # fmt: skip
_FOOT = (
    "Means over {seeds} seeds, {blocks} blocks each. SAVED: of the whole state's bytes. "
    "BYTES OFF: of the state before the\nnext block, most of any seed. SEEN AT: the first block "
    "with any other frame, in any seed. dB: {ceiling:g} less the\nPSNR against the exact twin; 0 "
    "for the same bits. RECOVERED: seeds whose last block shows the twin's frames\nand leaves its "
    "state, bit for bit."
)


def table(rows: Sequence[Row]) -> str:
    """One line a handle."""
    lines: list[tuple[str, ...]] = [_HEADINGS, *(_cells(row) for row in rows)]
    foot = _FOOT.format(seeds=rows[0].seeds, blocks=len(rows[0].divergence_db), ceiling=CEILING_DB)
    return f"{columns(lines, left={0, 1})}\n\n{foot}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.family,
        row.name,
        f"{row.saved_share:.1%}",
        str(row.differing_bytes_max),
        "never" if row.visible_at is None else str(row.visible_at),
        f"{row.divergence_db[0]:.1f}",
        f"{row.divergence_db[-1]:.1f}",
        f"{row.worst_db:.1f}",
        f"{min(row.frames_recovered, row.state_recovered)}/{row.seeds}",
    )
