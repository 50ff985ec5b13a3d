"""Report: what people and machines read."""

from __future__ import annotations

import json
from pathlib import Path

from bench.markdown import section
from bench.report import document, listing, summary, table, write
from bench.row import RowSpec, at_least, at_most, below

RATIO = RowSpec("posix.ratio", "x", at_least(0.85))
TIME = RowSpec("gpu.time", "ms", at_most(5.5))
RATE = RowSpec("host.worldline", "GB/s", verified=True)
ROWS = [
    RATIO.measured(0.8512, 5, "a 1 ms, b 2 ms"),
    TIME.skipped("no NVIDIA driver"),
    TIME.measured(5.6, 50),
    RATE.measured(8.123, 5, "x" * 300),
    RATE.failed("torn off"),
]


def test_every_row_has_exactly_the_keys_that_readers_expect() -> None:
    keys = {"name", "value", "unit", "bar", "ok", "repeats", "skipped", "verified", "detail"}
    for row in ROWS:
        assert set(row.to_json()) == keys
    assert ROWS[0].to_json() == {
        "name": "posix.ratio",
        "value": 0.8512,
        "unit": "x",
        "bar": ">= 0.85",
        "ok": True,
        "repeats": 5,
        "skipped": None,
        "verified": None,
        "detail": "a 1 ms, b 2 ms",
    }


def test_a_skipped_row_has_no_value_and_no_verdict() -> None:
    skipped = ROWS[1].to_json()
    assert (skipped["value"], skipped["ok"], skipped["repeats"]) == (None, None, 0)
    assert skipped["skipped"] == "no NVIDIA driver"


def test_a_bar_is_met_on_its_limit_and_missed_beyond_it() -> None:
    assert RATIO.measured(0.85, 1).ok is True
    assert RATIO.measured(0.8499, 1).ok is False
    assert TIME.measured(5.5, 1).ok is True
    assert TIME.measured(5.5001, 1).ok is False
    below_it = RowSpec("x", "ms", below(1.5))
    assert below_it.measured(1.4999, 1).ok is True
    assert below_it.measured(1.5, 1).ok is False
    assert str(below_it.bar) == "< 1.5"
    assert RATE.measured(1.0, 1).ok is None
    assert RATE.failed("torn off").ok is False


def test_the_table_cuts_notes_and_nothing_else() -> None:
    lines = table(ROWS).splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert "skipped: no NVIDIA driver" in lines[2]
    assert lines[3].split()[:6] == ["gpu.time", "5.60", "ms", "<=", "5.5", "NO"]
    assert lines[4].endswith("...")
    assert len(lines[4]) < 220
    starts = {line.index("ms") for line in lines[2:4]}
    assert len(starts) == 1


def test_the_listing_shows_names_and_bars() -> None:
    assert listing([RATIO, RATE]).splitlines() == [
        "ROW             UNIT  BAR",
        "posix.ratio     x     >= 0.85",
        "host.worldline  GB/s",
    ]


def test_the_summary_names_what_was_missed() -> None:
    text = summary(ROWS)
    assert text.startswith("1 bars met, 2 missed, 1 rows skipped")
    assert "gpu.time" in text
    assert "host.worldline" in text


def test_the_document_is_whole_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    content = document(
        ROWS,
        machine={"cores": 2},
        versions={"torch": "2.13.0"},
        commit=("abc", True),
        started_at="2026-11-29T12:00:00+00:00",
        seed=7,
        comparable=True,
    )
    write(path, content)
    read = json.loads(path.read_text())
    wanted = {"machine", "versions", "commit", "dirty", "started_at", "seed", "rows"}
    assert wanted <= set(read)
    assert [row["name"] for row in read["rows"]] == [row.spec.name for row in ROWS]
    assert [entry.name for entry in path.parent.iterdir()] == ["latest.json"]


def test_a_document_becomes_a_section_of_the_docs() -> None:
    content = document(
        ROWS,
        machine={
            "cores": 2,
            "cpu": "a processor",
            "memory_bytes": 24 << 30,
            "kernel": "6.18",
            "page_bytes": 4096,
            "transparent_huge_pages_shmem": "never",
            "tcp_congestion_control": "bbr",
            "gpus": {"names": []},
            "used_by_others": 0.01,
        },
        versions={"torch": "2.13.0"},
        commit=("abcdef0123456789", False),
        started_at="2026-11-29T12:00:00+00:00",
        seed=7,
        comparable=True,
    )
    lines = section(content).splitlines()
    assert "abcdef012345" in lines[0]
    assert "no GPU" in lines[2]
    assert "| `posix.ratio` | 0.851 x | >= 0.85 | yes |  | 5 | a 1 ms, b 2 ms |" in lines
    assert "| `gpu.time` | skipped | <= 5.5 |  |  |  | no NVIDIA driver |" in lines
    assert "| `host.worldline` | - |  | no | yes |  | failed: torn off |" in lines
