from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

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
from worldline.sdk import MovePhase, MoveRecord, Rejected, TraceSpan
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
