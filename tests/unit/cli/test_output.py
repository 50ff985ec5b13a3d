from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from worldline.cli import output, traces
from worldline.cli.output import (
    error_line,
    exit_status,
    human_bytes,
    jsonable,
    move_exit_status,
    move_jsonable,
)
from worldline.cli.strip import Labelled, write_strip
from worldline.cli.traces import bar, in_order
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    IntegrityError,
    InvalidInput,
    NotFound,
    Unavailable,
    WorldlineError,
)
from worldline.sdk import MovePhase, MoveRecord, Rejected, Trace, TraceSpan
from worldline.verdict import RejectReason, Verdict


def record(phase: MovePhase, verdict: Verdict | None = None) -> MoveRecord:
    return MoveRecord(
        move_id="m",
        session_id="s",
        source_engine_id="a",
        target_engine_id="b",
        source_epoch=1,
        phase=phase,
        verdict=verdict,
        failure=None,
        timings_ms={"push": 1.0},
        push_stats=None,
        frozen_ms=2.0,
        source_digest=2**64 - 1,
        target_digest=1,
        trace_id="t",
        age_ms=0,
    )


def span(span_id: str, parent: str, start: float, duration: float = 1.0) -> TraceSpan:
    return TraceSpan(span_id, parent, "svc", span_id, start, duration, "ok", {})


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InvalidInput("bad", field="seed"), 2, "INVALID_INPUT [seed]: bad"),
        (NotFound("gone"), 4, "NOT_FOUND: gone"),
        (Unavailable("down"), 5, "UNAVAILABLE: down"),
        (Conflict("no", reason="SAME_NODE"), 1, "SAME_NODE: no"),
        (
            IntegrityError("differ", leaf="k[3]", granule=9),
            6,
            "DIGEST_MISMATCH [leaf k[3], granule 9]: differ",
        ),
        (
            CapacityExhausted("busy", retry_after_ms=40),
            5,
            "CAPACITY_EXHAUSTED: busy (retry after 40 ms)",
        ),
        (Rejected(Verdict.reject(RejectReason.NO_TARGET, "none")), 3, "NO_TARGET: none"),
        (
            Rejected(Verdict.reject(RejectReason.STATE_TOO_LARGE, "big")),
            3,
            "STATE_TOO_LARGE: big; for a local cluster: `worldline up --slot-mb N`",
        ),
        (
            Rejected(
                Verdict.reject(
                    RejectReason.STATE_TOO_LARGE, "big", {"state_bytes": float((2 << 20) + 1)}
                )
            ),
            3,
            "STATE_TOO_LARGE: big; for a local cluster: `worldline up --slot-mb 3`",
        ),
    ],
)
def test_an_error_is_one_line_and_a_status(error: WorldlineError, status: int, line: str) -> None:
    assert exit_status(error) == status
    assert error_line(error) == line


def test_statuses_of_moves() -> None:
    verdict = Verdict.reject(RejectReason.TARGET_FULL, "full")
    assert move_exit_status(record(MovePhase.DONE)) == 0
    assert move_exit_status(record(MovePhase.ABORTED)) == 1
    assert move_exit_status(record(MovePhase.REJECTED, verdict)) == 3


def test_digests_are_text_in_json() -> None:
    made = json.loads(json.dumps(move_jsonable(record(MovePhase.DONE))))
    assert made["source_digest"] == "ffffffffffffffff"
    assert (made["outcome"], made["phase"], made["timings_ms"]) == (
        "committed",
        "DONE",
        {"push": 1.0},
    )


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=4) | st.integers() | st.none()))
def test_anything_is_jsonable(value: dict[str, object]) -> None:
    json.dumps(jsonable(value))


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1_670_124_960, "1.67 GB"), (2_500, "2.50 kB")]
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert human_bytes(size_bytes) == text


def test_the_waterfall_is_depth_first_by_start() -> None:
    spans = (
        span("push", "move", 5),
        span("admit", "move", 1),
        span("send", "push", 6),
        span("move", "gone", 0, 9),
        span("stray", "nowhere", 7),
    )
    assert [(depth, one.name) for depth, one in in_order(spans)] == [
        (0, "move"),
        (1, "admit"),
        (1, "push"),
        (2, "send"),
        (0, "stray"),
    ]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 200))
def test_a_bar_stays_on_its_axis(start: float, duration: float, rest: float, cells: int) -> None:
    total_ms = start + duration + rest
    drawn = bar(span("a", "", start, duration), total_ms, cells)
    assert 1 <= len(drawn) <= cells
    assert drawn.endswith("█")


def test_a_strip_is_an_image(tmp_path: Path) -> None:
    frames = [
        Labelled(f"block {number}", np.full((48, 64, 3), number * 40, dtype=np.uint8))
        for number in range(5)
    ]
    path = tmp_path / "new" / "strip.png"
    write_strip(path, frames, columns=3)
    with Image.open(path) as image:
        assert image.size == (3 * (64 * 3 + 6) + 6, 2 * (48 * 3 + 32))
        colours = image.getcolors(1 << 20)
    assert {(160, 160, 160), (120, 120, 120)} <= {colour for _, colour in colours or []}


def test_a_strip_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        write_strip(tmp_path / "x.png", [])
    assert caught.value.field == "frames"
    odd = [
        Labelled("a", np.zeros((2, 2, 3), np.uint8)),
        Labelled("b", np.zeros((2, 3, 3), np.uint8)),
    ]
    with pytest.raises(InvalidInput):
        write_strip(tmp_path / "x.png", odd)


LONG_ID = "session-" + "0" * 24


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed on 80 columns."""
    out = io.StringIO()
    console = Console(file=out, width=80, soft_wrap=True)
    for module in (output, traces):
        monkeypatch.setattr(module, "console", console)
    monkeypatch.setattr(output, "err_console", Console(file=out, width=80, soft_wrap=True))
    return out


def test_a_narrow_table_drops_columns_and_cuts_no_cell(narrow: io.StringIO) -> None:
    columns = ("MOVE", "SESSION", "SOURCE", "BYTES", "OUTCOME")
    row = ("move-" + "1" * 24, LONG_ID, "node-1-cpu", "1.43 MB", "committed")
    output.print_table(columns, [row], drop=("BYTES", "SOURCE"))
    lines = narrow.getvalue().splitlines()
    assert lines[0].split() == ["MOVE", "SESSION", "OUTCOME"]
    assert lines[1].split() == [row[0], LONG_ID, "committed"]
    assert "too narrow for BYTES, SOURCE" in lines[2]
    assert all(len(line) <= 80 for line in lines)


def test_a_table_that_cannot_get_narrower_is_wider_than_the_terminal(narrow: io.StringIO) -> None:
    output.print_table(("A", "B", "C"), [(LONG_ID, LONG_ID, LONG_ID)])
    assert narrow.getvalue().splitlines()[1].split() == [LONG_ID] * 3


def test_a_narrow_waterfall_keeps_its_numbers(narrow: io.StringIO) -> None:
    spans = tuple(
        TraceSpan(
            f"mover.reserve{number}",
            "",
            "placement",
            f"mover.reserve{number}",
            1_000.0 + number,
            2_345.6,
            "ok",
            {"bytes": "1670124960", "rate_bytes_per_s": "1684000000", "chunks": "399"},
        )
        for number in range(3)
    )
    traces.print_waterfall(Trace("t", spans))
    lines = narrow.getvalue().splitlines()
    assert "START MS" in lines[1]
    assert all("2345.6" in line and "█" in line for line in lines[2:])
    assert all(len(line) <= 80 for line in lines)


@given(st.integers(0, 300), st.integers(0, 80), st.integers(1, 30))
def test_a_bar_leaves_room_for_what_stands_beside_it(left: int, facts: int, axis: int) -> None:
    cells, with_facts = traces.bar_cells(left, facts, axis)
    assert 16 <= cells <= 48
    if with_facts:
        assert max(cells, axis) + facts + 2 <= left
    elif left >= 18:
        assert cells + 2 <= left
