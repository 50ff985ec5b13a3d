"""Service process: one child of a local cluster, from start to a bounded end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worldline.errors import Unavailable

#: Lines of a dead child's log that are shown.
TAIL_LINES = 12
_TAIL_BYTES = 8_192


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What to run: `entry` is `module:function`, as in a console script.

    `variables` are the service's settings without its prefix, for example `node_id`; `env` is
    anything else for its environment.
    """

    name: str
    service: str
    entry: str
    variables: Mapping[str, str] = field(hash=False)
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    def environment(self, ready_fd: int) -> dict[str, str]:
        """The child's whole environment."""
        prefix = f"WORLDLINE_{self.service.upper()}_"
        own = {
            "ready_fd": str(ready_fd),
            "die_with_parent": "true",
            **self.variables,
        }
        settings = {prefix + name.upper(): value for name, value in own.items()}
        return {**os.environ, **settings, **self.env}


class ServiceProcess:
    """A running child. Its output goes to a file: nothing is lost when the parent dies."""

    def __init__(
        self,
        spec: ServiceSpec,
        process: asyncio.subprocess.Process,
        log_path: Path,
        ready_fd: int,
    ) -> None:
        self.spec = spec
        self.log_path = log_path
        #: host:port once ready, and of its metrics; the latter empty where it has none.
        self.address = ""
        self.metrics_address = ""
        self._process = process
        self._ready_fd = ready_fd

    @classmethod
    async def start(cls, spec: ServiceSpec, log_path: Path) -> ServiceProcess:
        """Start the child in a process group of its own, so that Ctrl-C reaches only us."""
        module, _, function = spec.entry.partition(":")
        code = f"from {module} import {function}; {function}()"
        read_fd, write_fd = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    code,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=spec.environment(write_fd),
                    pass_fds=(write_fd,),
                    process_group=0,
                )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        return cls(spec, process, log_path, read_fd)

    @property
    def name(self) -> str:
        """The child's name within its cluster."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """Its process id (and process group id)."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process.returncode is None

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    async def ready(self, timeout_s: float) -> str:
        """Wait until it serves; returns its address.

        Raises:
            Unavailable: it ended or was not ready in time; its last lines are in the message.
        """
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._read_ready_line()
                if not line:
                    await self.wait()
        except TimeoutError:
            raise self._failed(f"was not ready within {timeout_s:g} s") from None
        if not line:
            raise self._failed(f"ended with status {self.status} before it was ready")
        said = json.loads(line)
        self.address = str(said["address"])
        self.metrics_address = str(said.get("metrics_address", ""))
        return self.address

    async def wait(self) -> int:
        """Until it ends; returns its status."""
        return await self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the child; one that has ended gets none."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, timeout_s: float) -> bool:
        """SIGTERM, and SIGKILL to its group after `timeout_s`; True: it ended by itself."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL the child and whatever it started; waits until it is gone."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        await self.wait()

    def tail(self) -> str:
        """The last lines of its output."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def close(self) -> None:
        """Give the readiness pipe back; idempotent."""
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1

    async def _read_ready_line(self) -> bytes:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._ready_fd, "rb", buffering=0)
        self._ready_fd = -1
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            return await reader.readline()
        finally:
            transport.close()

    def _failed(self, what: str) -> Unavailable:
        tail = self.tail()
        shown = "; its last lines:\n" + tail if tail else "; it wrote nothing"
        return Unavailable(f"{self.name} {what}{shown}", reason="SERVICE_START_FAILED")
