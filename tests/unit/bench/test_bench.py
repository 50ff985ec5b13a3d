"""Bench: the command itself, on a small payload."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.row import RowSpec
from bench.table import chosen, suites

ROOT = Path(__file__).parents[3]
#: Rows that readers of `latest.json` look for, with their bars.
BARS = {
    "host.worldline-over-nixl": ">= 1",
    "posix.verified-over-off": ">= 0.85",
    "cma.verified-over-off": ">= 0.95",
    "posix.off-over-perftest": ">= 0.9",
    "cma.off-over-perftest": ">= 0.9",
    "tcp.verified-over-perftest": ">= 0.9",
    "gpu.move": "<= 5.5",
    "gpu.move-over-raw-ucx": "<= 1.15",
    "gpu.move-over-save-load": ">= 350",
    "gpu.exposed-verification": "<= 1",
    "gpu.suspend-over-copy": "<= 1.05",
    "gpu.resume-over-copy": "<= 1.05",
    "gpu.qwen-round-trip": "< 1.5",
    "control.overhead": "<= 15",
}


def specs() -> list[RowSpec]:
    return [spec for suite in suites() for spec in suite.specs]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench", *arguments]


def test_every_bar_of_the_project_has_a_row() -> None:
    found = {spec.name: spec for spec in specs()}
    assert len(found) == len(specs())
    assert {name: str(found[name].bar) for name in BARS} == BARS


def test_rows_are_chosen_by_glob_or_part_of_the_name() -> None:
    assert chosen(specs(), ["tcp.*perftest"]) == {"tcp.ucx-perftest", "tcp.verified-over-perftest"}
    assert chosen(specs(), ["nixl-tcp", "control"]) == {"host.nixl-tcp", "control.overhead"}
    assert len(chosen(specs(), [])) == len(specs())
    with pytest.raises(ValueError, match="matches no row"):
        chosen(specs(), ["no-such-row"])


def test_a_quick_run_measures_and_says_that_it_compares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ended = subprocess.run(
        command("--quick", "--repeats", "2", "--only", "host.sockets-1", "--json", str(path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    assert "no figure here can be compared" in ended.stdout
    document = json.loads(path.read_text())
    assert document["comparable"] is False
    assert [row["name"] for row in document["rows"]] == ["host.sockets-1"]
    for row in document["rows"]:
        assert row["value"] > 0
        assert (row["repeats"], row["verified"], row["skipped"]) == (2, False, None)
    assert len(document["commit"]) in (0, 40)
    assert document["machine"]["page_bytes"] > 0
    assert "torch" in document["versions"]


def test_an_interrupt_ends_everything_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('bench', run_name='__main__', alter_sys=True)"
    )
    options = ["--quick", "--repeats", "100000", "--only", "sockets-1", "--json", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 2" in line:
                break
        workers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130, rest
    assert "interrupted: nothing was written" in rest
    assert "Traceback" not in rest
    assert not path.exists()
    assert len(workers) == 2
    deadline_s = time.monotonic() + 60
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(worker.is_running() for worker in workers)
