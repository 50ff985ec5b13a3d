"""The console script as a process: how it ends when it is interrupted or cannot write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_MAIN = "import sys; sys.argv[1:] = [{!r}]; from worldline.cli.main import main; main()"
_HEAVY = ("grpc", "numpy", "rich", "typer", "asyncio")


def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", code],
        text=True,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        **options,
    )


def test_the_entry_imports_nothing_heavy() -> None:
    code = f"import sys, worldline.cli.main; sys.exit(any(m in sys.modules for m in {_HEAVY}))"
    assert run(code).returncode == 0


@pytest.mark.parametrize("where", ["worldline.cli.app", "grpc"])
def test_ctrl_c_during_import_is_quiet(where: str) -> None:
    code = f"""
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {where!r}:
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
sys.meta_path.insert(0, Interrupting())
from worldline.cli.main import main
main()
"""
    ended = run(code)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_sigterm_lets_a_command_clean_up_once() -> None:
    code = """
import asyncio, os, signal
from worldline.cli.common import run
async def work() -> int:
    os.write(1, b"begun ")
    try:
        await asyncio.sleep(600)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        os.write(1, b"cleaned up")
    return 0
import typer
app = typer.Typer()
app.command()(lambda: run(work))
app()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as it:
        assert it.stdout is not None
        begun = it.stdout.read(6)
        it.send_signal(signal.SIGTERM)
        said, errors = it.communicate(timeout=60)
    assert (begun, said, errors, it.returncode) == ("begun ", "cleaned up", "", 143)


@pytest.mark.parametrize(
    "code",
    [
        _MAIN.format("--version"),
        _MAIN.format("--help"),
        # Buffered until the end, as `--json` is.
        "import sys; from worldline.cli import app, main; "
        "app.app = lambda: sys.stdout.write('{}'); main.main()",
    ],
)
def test_a_full_disk_is_one_line(code: str) -> None:
    with open("/dev/full", "w") as full:
        ended = run(code, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr.startswith("worldline: OUTPUT_FAILED")
    assert ended.stderr.count("\n") == 1


def test_a_reader_that_left_is_no_traceback() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        ended = run(_MAIN.format("--help"), stdout=write_fd)
    finally:
        os.close(write_fd)
    assert (ended.returncode, ended.stderr) == (1, "")
