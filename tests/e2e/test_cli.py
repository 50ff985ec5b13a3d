"""The commands of the README, run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

WORLDLINE = str(Path(sys.executable).with_name("worldline"))
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - listed, never written


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Sockets are made below it, and the kernel bounds their paths to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="wl-") as path:
        yield Path(path)


def run(*arguments: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WORLDLINE, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_the_demo_holds(tmp_path: Path) -> None:
    done = run("demo", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert len(report["moves"]) == 2
    for move in report["moves"]:
        assert move["phase"] == "DONE"
        assert move["source_digest"] == move["target_digest"]
        names = {"admit", "reserve", "freeze", "push", "verify", "attach", "commit", "thaw"}
        assert names <= set(move["timings_ms"])
    assert all(check["held"] for check in report["checks"])
    with Image.open(tmp_path / "strip.png") as strip:
        assert min(strip.size) >= 256
        assert len(strip.convert("L").getcolors()) > 50, "a strip of one colour shows nothing"


def until_no_segment_is_left(before: set[Path]) -> None:
    """Others' have a name for a moment, while their peers open them; a leftover has it for ever."""
    deadline_s = time.monotonic() + 60.0
    while left := set(SHARED_MEMORY.iterdir()) - before:
        assert time.monotonic() < deadline_s, f"left behind: {sorted(left)}"
        time.sleep(0.05)


@pytest.mark.timeout(900)
def test_up_and_interrupt_again_and_again_leaves_nothing(short_dir: Path) -> None:
    segments = set(SHARED_MEMORY.iterdir())
    for turn in range(4):
        directory = short_dir / f"cluster-{turn}"
        up = subprocess.Popen(
            [WORLDLINE, "up", "--nodes", "2", "--dir", str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert up.stdout is not None
            seen = ""
            for line in up.stdout:
                seen += line
                if "serving" in line:
                    break
            assert "serving" in seen, seen
            children = psutil.Process(up.pid).children(recursive=True)
            bound = {
                tuple(each.laddr)
                for child in children
                for each in child.net_connections()
                if each.status == psutil.CONN_LISTEN
            }
            # Two nodes with a mover and an engine each, placement and admission: all serve.
            assert len(children) >= 6
            assert len(bound) >= 6
            up.send_signal(signal.SIGINT)
            rest, _ = up.communicate(timeout=60)
            assert up.returncode == 0, rest
        finally:
            up.kill()
            up.communicate(timeout=60)
        assert [child for child in children if child.is_running()] == []
        assert not directory.exists()
        until_no_segment_is_left(segments)
        # Address and port: another process may hold the same port at another address.
        assert [
            each
            for each in psutil.net_connections()
            if each.status == psutil.CONN_LISTEN and tuple(each.laddr) in bound
        ] == []


@pytest.mark.timeout(600)
def test_the_whole_mg2_state_moves(tmp_path: Path) -> None:
    report_path = tmp_path / "bench.json"
    done = run(
        "bench", "move", "--preset", "mg2", "--repeats", "1", "--json", str(report_path),
        timeout_s=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_path.read_text())
    # What no block of it ever writes stays behind; the rest of a gigabyte and a half travels.
    assert report["bytes"] + report["blank_bytes"] >= 1_670_124_960
    assert 300_000_000 < report["blank_bytes"] < 324_800_000
    assert report["verified_gb_per_s"] > 0
    assert report["unverified_gb_per_s"] > 0
    assert report["chunk_bytes"] * report["chunks"] >= report["bytes"]
    assert report["window_chunks"] > 0
    assert report["lanes"]
    names = {"admit", "reserve", "freeze", "push", "verify", "attach", "commit", "thaw"}
    assert names <= set(report["phases_s"])


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert first.stdout is not None
        match = re.search(r"port (\d+)", first.stdout.readline())
        assert match is not None
        address = f"127.0.0.1:{match[1]}"
        for service in ("admission", "placement", "mover", "engine"):
            prefix = f"WORLDLINE_{service.upper()}_"
            names = {
                "LISTEN": address,
                "NODE_ID": "node-1",
                "ENGINE_ID": "engine-1",
                "PLACEMENT_ADDRESS": "127.0.0.1:1",
                "ADMISSION_ADDRESS": "127.0.0.1:1",
                "MOVER_ADDRESS": "127.0.0.1:1",
                "DIRECTORY_PATH": str(tmp_path / "directory.sqlite"),
                "RUNTIME_DIR": str(tmp_path),
            }
            known = SETTINGS[service]
            env = {**os.environ, **{prefix + name: names[name] for name in known}}
            done = subprocess.run(
                [f"{WORLDLINE}-{service}"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env=env,
            )
            assert done.returncode != 0
            assert address in done.stderr, (service, done.stderr)
            assert "Traceback" not in done.stderr
    finally:
        first.kill()
        first.communicate(timeout=60)


SETTINGS = {
    "admission": ("LISTEN",),
    "placement": ("LISTEN", "ADMISSION_ADDRESS", "DIRECTORY_PATH"),
    "mover": ("LISTEN", "NODE_ID", "PLACEMENT_ADDRESS", "ADMISSION_ADDRESS", "RUNTIME_DIR"),
    "engine": ("LISTEN", "NODE_ID", "ENGINE_ID", "PLACEMENT_ADDRESS", "MOVER_ADDRESS"),
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("move",), "SESSION"),
        (("up", "--nodes", "0"), "nodes"),
        (("sessions", "--placement", "127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_a_users_mistake_gets_one_clear_line(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, timeout_s=60)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
