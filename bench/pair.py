"""Pair: a contestant made of two worker processes, one for each side."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contestant import Contestant, Failed, Skipped
from bench.payload import Payload
from bench.worker import Job

#: Starting includes importing torch and mapping the payload, page by page.
_START_S = 120.0
_RUN_S = 120.0
_TAIL_LINES = 6
_ROLES = ("source", "target")
_IN_MEMORY = "/dev/shm"  # noqa: S108


class _Process:
    """One worker and the socket that commands it."""

    def __init__(self, job: Job, link: socket.socket, memory: int, env: Mapping[str, str]) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(_RUN_S)
        self._lines = self.control.makefile("r", encoding="utf-8")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        fds = (theirs.fileno(), link.fileno(), memory)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=fds,
                env={**os.environ, **env},
                cwd=Path(__file__).parents[1],
                process_group=0,  # so that Ctrl-C reaches only us
            )
        self.send(job.to_line())

    def send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the answer says how it ended
            self.control.sendall(line.encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise Failed(f"no answer within {_RUN_S:g} s") from None
        except OSError:
            line = ""
        if not line:
            raise Failed(f"a process ended with status {self._child.wait()}: {self._tail()}")
        fields: dict[str, Any] = json.loads(line)
        if "unfit" in fields:
            raise Skipped(fields["unfit"])
        return fields

    def signal(self, number: int) -> None:
        if self._child.poll() is None:
            self._child.send_signal(number)

    def end(self) -> None:
        self.control.close()
        self.signal(signal.SIGKILL)
        self._child.wait()
        self._log.close()

    def _tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-_TAIL_LINES:]) or "it wrote nothing"


class Pair(Contestant):
    """A contestant over `module`, whose `SIDES` are its two sides.

    Between its turns both processes are stopped: some poll a core of their own without pause, and
    would take it from whoever is being timed.
    """

    def __init__(
        self,
        name: str,
        module: str,
        payload: Payload,
        *,
        options: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        note: str = "",
        runs_max: int | None = None,
    ) -> None:
        super().__init__(name, runs_max=runs_max)
        self.note = note
        self._module = module
        self._payload = payload
        self._options = dict(options or {})
        self._env = dict(env or {})
        self._processes: dict[str, _Process] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        self._start()
        self._answers(_START_S)
        self._all({"do": "prepare"})
        peers = self._answers(_START_S)
        for role, other in (_ROLES, _ROLES[::-1]):
            self._send(role, {"do": "connect", "peer": peers[other]["peer"]})
        self._answers(_START_S)
        self._rest()
        self.run()

    def run(self) -> float:
        """See `Contestant.run`."""
        self._wake()
        if "target" in self._processes:
            self._one("target", {"do": "spoil"})
        self._all({"do": "arm"})
        self._answers(_RUN_S)
        for role in reversed(_ROLES):  # the target first: it waits, the source acts
            self._send(role, {"do": "run"})
        times = self._answers(_RUN_S)
        landed = self._one("target", {"do": "digest"})["digest"]
        if landed != self._payload.digest:
            raise Failed("what landed is not what was sent")
        self._all({"do": "clear"})
        self._answers(_RUN_S)
        self._rest()
        return float(times["target"]["ended_s"] - times["source"]["begun_s"])

    def close(self) -> None:
        """See `Contestant.close`."""
        for process in self._processes.values():
            process.end()
        self._processes = {}
        if self._scratch is not None:
            self._scratch.cleanup()

    def _start(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="worldline-bench-", dir=_IN_MEMORY)
        links = dict(zip(_ROLES, socket.socketpair(), strict=True))
        try:
            for role in _ROLES:
                shared = self._payload.shared(role)
                job = Job(
                    module=self._module,
                    role=role,
                    options=self._options,
                    layout_name=self._payload.name,
                    extent_bytes=shared.extent_bytes,
                    scratch=self._scratch.name,
                )
                self._processes[role] = _Process(job, links[role], shared.descriptor, self._env)
        finally:
            for link in links.values():
                link.close()

    def _send(self, role: str, command: dict[str, Any]) -> None:
        self._processes[role].send(json.dumps(command))

    def _all(self, command: dict[str, Any]) -> None:
        for role in _ROLES:
            self._send(role, command)

    def _answers(self, timeout_s: float) -> dict[str, dict[str, Any]]:
        """Whoever answers first is heard first: one that died must not wait for the other."""
        answers: dict[str, dict[str, Any]] = {}
        deadline_s = time.monotonic() + timeout_s
        while waiting := {p.control: r for r, p in self._processes.items() if r not in answers}:
            left_s = deadline_s - time.monotonic()
            ready = select.select(list(waiting), [], [], max(0.0, left_s))[0]
            if not ready:
                raise Failed(f"no answer of the {'/'.join(waiting.values())} in {timeout_s:g} s")
            for control in ready:
                role = waiting[control]
                answers[role] = self._processes[role].answer()
        return answers

    def _one(self, role: str, command: dict[str, Any]) -> dict[str, Any]:
        self._send(role, command)
        return self._processes[role].answer()

    def _rest(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGSTOP)

    def _wake(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGCONT)
