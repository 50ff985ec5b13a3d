"""Elsewhere: another process that generates, in which nothing of this one's past exists.

It differs in what a model must not depend on: another hash seed, another seed of every global
generator, a clock that is weeks ahead. One question and one answer a line, each a JSON object.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from services.engine.check.private import Seen, Snapshot
from services.engine.device import EngineDevice
from worldline.errors import DeadlineExceeded, InvariantBroken, Unavailable
from worldline.state.codec import layout_to_proto

#: How long a process may take to end by itself.
_END_S = 10.0


class Elsewhere:
    """The other process; started by the first question. `close` ends it."""

    def __init__(self, device: EngineDevice, threads: int, answer_s: float) -> None:
        self._device = device
        self._threads = threads
        self._answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    def continued(
        self, name: str, weights_seed: int, snapshot: Snapshot, blocks: int
    ) -> tuple[Seen, ...]:
        """The blocks that follow a snapshot there.

        Raises:
            InvariantBroken: the model raised; the message says what and where.
            Unavailable: the process died. DeadlineExceeded: it did not answer in time.
        """
        with tempfile.TemporaryDirectory(prefix="worldline-check-") as directory:
            data, layout = Path(directory) / "slot", Path(directory) / "layout"
            data.write_bytes(snapshot.data)
            layout.write_bytes(layout_to_proto(snapshot.layout).SerializeToString())
            question = {
                "data": str(data),
                "layout": str(layout),
                "block_index": snapshot.block_index,
            }
            return self._ask(name, weights_seed, blocks, question)

    def replayed(self, name: str, weights_seed: int, seed: int, blocks: int) -> tuple[Seen, ...]:
        """The first blocks of a session with that seed there. Raises as `continued`."""
        return self._ask(name, weights_seed, blocks, {"seed": seed})

    def close(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(
        self, name: str, weights_seed: int, blocks: int, question: dict[str, Any]
    ) -> tuple[Seen, ...]:
        asked = {"name": name, "weights_seed": weights_seed, "blocks": blocks, **question}
        process = self._process = self._process or self._start()
        try:
            self._write(process, json.dumps(asked).encode() + b"\n")
            answer = json.loads(self._read_line(process))
        except BaseException:
            process.kill()
            self.close()
            raise
        if "error" in answer:
            raise InvariantBroken(str(answer["error"]), reason="MODEL_FAILED_ELSEWHERE")
        return tuple(Seen.from_json(one) for one in answer["seen"])

    def _start(self) -> subprocess.Popen[bytes]:
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        return subprocess.Popen(  # noqa: S603 - this interpreter, our module
            [
                sys.executable,
                "-m",
                "services.engine.check.peer",
                self._device.name,
                str(self._threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def _write(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        if process.stdin is None:
            raise InvariantBroken("the other process has no stdin")
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died(process) from None

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        if process.stdout is None:
            raise InvariantBroken("the other process has no stdout")
        deadline = time.monotonic() + self._answer_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise DeadlineExceeded(
                        f"another process did not generate within {self._answer_s:g} s",
                        reason="CHECK_TIMED_OUT",
                    )
                more = os.read(process.stdout.fileno(), 1 << 20)
                if not more:
                    raise self._died(process)
                self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _died(self, process: subprocess.Popen[bytes]) -> Unavailable:
        status = process.wait()
        return Unavailable(
            f"the other process ended with status {status} while it generated; what it said is "
            "on stderr",
            reason="CHECK_PROCESS_DIED",
        )
