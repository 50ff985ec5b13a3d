"""Frame: a snapshot as a screen. Pure: the same snapshot at the same moment is the same frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from worldline.cli.fitting import Column, fitted
from worldline.cli.output import COUNTED, counted, counts_told, human_bytes
from worldline.cli.quantities import human_ms
from worldline.cli.top_snapshot import Snapshot
from worldline.sdk import BlockCounts, MoveRecord, Node, SessionInfo

#: Rows that each part gets before any gets more.
_ROWS_MIN = 3
#: Lines of a part beside its rows: its columns' titles, a line that says what is left out, a gap.
_AROUND = 3

_KEPT = tuple(Column(title, right=True) for title in COUNTED)
_NODES = (
    Column("NODE"), Column("STATE"), Column("DEVICE"), Column("FREE", right=True),
    Column("LIVE", right=True), Column("SHADOW", right=True), Column("QUARANTINED", right=True),
    *_KEPT, Column("SLOT", right=True), Column("ENGINES"),
)  # fmt: skip
_SESSIONS = (
    Column("SESSION"), Column("OWNER"), Column("STATE"), Column("PRESET"),
    Column("BLOCK", right=True), *_KEPT, Column("EPOCH", right=True), Column("BYTES", right=True),
)  # fmt: skip
_MOVES = (
    Column("MOVE"), Column("SESSION"), Column("FROM"), Column("TO"), Column("STEP"),
    Column("FOR", right=True), Column("SENT", right=True), Column("%", right=True),
    Column("RATE", right=True), Column("LEFT", right=True),
)  # fmt: skip
_REJECTS = (
    Column("AGO", right=True), Column("SESSION"), Column("REASON"),
    Column("AGAIN IN", right=True), Column("NUMBERS", rest=True),
)  # fmt: skip

#: What goes first where a line is too short (docs/watch.md says so too).
DROP = {
    "moves": ("MOVE", "FROM", "TO", "%", "FOR", "RATE"),
    "nodes": ("SLOT", "ENGINES", "QUARANTINED", "LATE", "SKIPPED", "DEGRADED"),
    "sessions": ("BYTES", "EPOCH", "PRESET", "LATE", "SKIPPED", "DEGRADED"),
    "rejects": ("NUMBERS", "AGO", "AGAIN IN"),
}
_NO_TIME = "-"


@dataclass(frozen=True, slots=True)
class _Part:
    """One table of the frame; `empty` is said where it has no rows."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: str


def frame(
    now_s: float, snapshot: Snapshot, width: int, height: int | None = None
) -> RenderableType:
    """What is shown at `now_s` (the snapshot's clock) in `width` columns.

    In `height` lines, where that is given, rows that do not fit are counted instead.
    """
    parts = _parts(now_s, snapshot)
    lines: list[RenderableType] = list(_head(now_s, snapshot))
    spare = None if height is None else height - len(lines) - 1 - _AROUND * len(parts)
    shares = row_shares([len(one.rows) for one in parts], spare)
    for part, share in zip(parts, shares, strict=True):
        lines.append(Text())
        if not part.rows:
            lines.append(Text(part.empty, style="dim"))
            continue
        lines.append(fitted(part.columns, part.rows[:share], width, DROP[part.name]))
        if share < len(part.rows):
            lines.append(Text(f"and {len(part.rows) - share} more {part.name}", style="dim"))
    return Group(*(_cut(one, width) for one in lines))


def row_shares(counts: Sequence[int], spare: int | None) -> list[int]:
    """How many rows each part shows of those it has, in `spare` lines (None: as many as it has).

    Each gets a few; what is left goes to the first that wants it.
    """
    if spare is None:
        return list(counts)
    shares: list[int] = []
    for count in counts:
        shares.append(max(0, min(count, _ROWS_MIN, spare - sum(shares))))
    for at, count in enumerate(counts):
        shares[at] += max(0, min(count - shares[at], spare - sum(shares)))
    return shares


def _cut(line: RenderableType, width: int) -> RenderableType:
    if isinstance(line, Text):
        line.truncate(width, overflow="ellipsis")
    return line


def _head(now_s: float, snapshot: Snapshot) -> list[Text]:
    states = Counter(one.state for one in snapshot.sessions)
    by_state = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    alive = sum(one.alive for one in snapshot.nodes)
    counts = [
        f"{alive} of {len(snapshot.nodes)} nodes alive",
        counted(len(snapshot.sessions), "session") + (f" ({by_state})" if by_state else ""),
        counted(len(snapshot.moves), "move") + " under way",
    ]
    head = [Text(f"worldline at {snapshot.placement_address}", style="bold")]
    head.append(Text("; ".join(counts)))
    if snapshot.trouble:
        head.append(Text(_trouble(now_s, snapshot), style="bold red"))
        head.append(Text(snapshot.trouble, style="red"))
    return head


def _trouble(now_s: float, snapshot: Snapshot) -> str:
    if snapshot.taken_s is None:
        return "placement has not answered yet; asking again"
    return f"placement does not answer; below is what it said {_ago(now_s, snapshot)} ago"


def _ago(now_s: float, snapshot: Snapshot) -> str:
    return brief_ms((now_s - (snapshot.taken_s or now_s)) * 1e3)


def _parts(now_s: float, snapshot: Snapshot) -> tuple[_Part, ...]:
    since_ms = 0.0 if snapshot.taken_s is None else max(0.0, now_s - snapshot.taken_s) * 1e3
    nodes = [row for one in snapshot.nodes for row in _node_rows(one)]
    sessions = [_session_row(one) for one in snapshot.sessions]
    moves = [_move_row(one, since_ms) for one in snapshot.moves]
    rejects = [_reject_row(one, since_ms) for one in snapshot.rejects]
    return (
        _Part("moves", _MOVES, moves, "no moves under way"),
        _Part("nodes", _NODES, nodes, "no nodes"),
        _Part("sessions", _SESSIONS, sessions, "no sessions"),
        _Part("rejects", _REJECTS, rejects, "no recent rejects"),
    )


def _node_rows(node: Node) -> list[tuple[str, ...]]:
    state = ("alive" if node.alive else "silent") + (f", {node.drain}" if node.drain else "")
    rows: list[tuple[str, ...]] = []
    for device in node.devices:
        here = [
            one
            for one in node.engines
            if (one.device_uuid or one.device) == (device.uuid or device.name)
        ]
        engines = ", ".join(f"{one.engine_id}{'' if one.alive else ' silent'}" for one in here)
        rows.append(
            (
                node.node_id,
                state,
                device.name,
                f"{device.slots_free}/{device.slots_total}",
                str(device.slots_live),
                str(device.slots_shadow),
                str(device.slots_quarantined),
                *counts_told(sum((one.block_counts for one in here), BlockCounts())),
                human_bytes(device.slot_bytes),
                engines or "none",
            )
        )
    nothing = ("0", "0", "0", *counts_told(None))
    return rows or [(node.node_id, state, "none", "0/0", *nothing, "-", "none")]


def _session_row(session: SessionInfo) -> tuple[str, ...]:
    return (
        session.session_id,
        session.engine_id or "-",
        session.state,
        session.world.preset,
        "-" if session.block_index is None else str(session.block_index),
        *counts_told(session.block_counts),
        str(session.epoch),
        human_bytes(session.state_bytes),
    )


def _move_row(move: MoveRecord, since_ms: float) -> tuple[str, ...]:
    progress = move.progress
    ends = (move.move_id, move.session_id, move.source_engine_id, move.target_engine_id or "-")
    if progress is None:  # it ended between two questions
        return (*ends, move.phase.name.lower(), _NO_TIME, "-", "-", "-", _NO_TIME)
    sent, total = progress.sent_bytes, progress.total_bytes
    rate, left_ms = progress.rate_bytes_per_s, progress.remaining_ms
    return (
        *ends,
        progress.step or progress.phase.name.lower().replace("_", " "),
        brief_ms(progress.step_ms + since_ms) if progress.step else _NO_TIME,
        human_bytes(sent) if total else "-",
        f"{sent * 100 // total}" if total else "-",
        f"{human_bytes(rate)}/s" if rate > 0 else "-",
        _NO_TIME if left_ms is None else brief_ms(max(0.0, left_ms - since_ms)),
    )


def _reject_row(move: MoveRecord, since_ms: float) -> tuple[str, ...]:
    verdict = move.verdict
    numbers = {} if verdict is None else verdict.numbers
    again_ms = 0 if verdict is None else verdict.retry_after_ms
    return (
        brief_ms(move.age_ms + since_ms),
        move.session_id,
        move.reason,
        human_ms(again_ms) if again_ms else "never",
        ", ".join(f"{name} {value:.6g}" for name, value in sorted(numbers.items())),
    )


def brief_ms(duration_ms: float) -> str:
    """12 ms, 1.2 s, 3 min: in a narrow column."""
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1e3:.1f} s"
    if duration_ms < 3_600_000:
        return f"{duration_ms / 60e3:.0f} min"
    return f"{duration_ms / 3.6e6:.0f} h"
