"""Worker: one of a contestant's two processes. Takes one JSON line a command, on a socket.

    python -m bench.worker CONTROL_FD LINK_FD MEMORY_FD

The first line describes the job; see `Job`. Times are of the monotonic clock, which all processes
of one machine share.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from bench.payload import Shared, layout_of
from bench.side import Side, Surroundings, Unfit

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Job:
    """Which side of which contestant, over which memory."""

    module: str
    role: str
    options: dict[str, str]
    layout_name: str
    extent_bytes: int
    scratch: str

    def to_line(self) -> str:
        """As the worker reads it."""
        return json.dumps(asdict(self))


class Worker:
    """Carries out commands on a side."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command; the answer's fields."""
        match command["do"]:
            case "prepare":
                return {"peer": self._side.prepare()}
            case "connect":
                self._side.connect(command["peer"])
            case "arm":
                self._side.arm()
            case "run":
                begun_s = time.monotonic()
                self._side.run()
                return {"begun_s": begun_s, "ended_s": time.monotonic()}
            case "digest":
                return {"digest": self._side.digest()}
            case "spoil":
                self._side.spoil()
            case "clear":
                self._side.clear()
            case other:
                raise ValueError(f"unknown command {other}")
        return {}


def main() -> None:
    """Serve until the control socket closes."""
    # Nobody else would end this process if the bench were killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    control, link = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    lines = control.makefile("r", encoding="utf-8")
    answers = control.makefile("w", encoding="utf-8")
    job = Job(**json.loads(lines.readline()))
    side: Side | None = None
    try:
        side = _build(job, link, int(sys.argv[3]))
        _answer(answers, {})
        _serve(Worker(side), lines, answers)
    except (Unfit, ImportError) as reason:
        _answer(answers, {"unfit": str(reason)})
    finally:
        if side is not None:
            side.close()


def _build(job: Job, link: socket.socket, descriptor: int) -> Side:
    memory = Shared(descriptor, job.extent_bytes)
    view = memoryview(memory.map())[: job.extent_bytes]
    layout, scratch = layout_of(job.layout_name), Path(job.scratch)
    at = Surroundings(job.role, layout, view, link, job.options, descriptor, scratch)
    sides = importlib.import_module(job.module).SIDES
    side: Side = sides[job.role](at)
    return side


def _serve(worker: Worker, lines: TextIO, answers: TextIO) -> None:
    for line in lines:
        _answer(answers, worker.do(json.loads(line)))


def _answer(answers: TextIO, fields: dict[str, Any]) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
