"""Host: the kernels' sources compiled for the CPU, so that CI runs the very code of the GPU.

A misaligned access, which a GPU refuses, ends the program here too.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_HERE = Path(__file__).parent
_built = TemporaryDirectory(prefix="host-kernels-")


@cache
def program(name: str) -> Path:
    """`host_NAME.cpp` as a program; skips the test where there is no C++ compiler."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = Path(_built.name) / name
    with as_file(files("worldline.cuda")) as sources:
        command = [
            *(compiler, "-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"),
            *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
            *("-Wno-unknown-pragmas", "-I", str(sources), "-o", str(target)),
            str(_HERE / f"host_{name}.cpp"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return target


def run(name: str, folder: Path, *arguments: int) -> None:
    """Run it on the files of a folder; a failed read or a wrong table ends it with a status."""
    command = [str(program(name)), str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
