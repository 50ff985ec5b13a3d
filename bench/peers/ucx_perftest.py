"""ucx_perftest: what UCX itself reaches on given lanes, without anything above it.

`tag_bw`, the same calls as the mover's: tagged sends into receives of known length. One message is
`message_bytes` long and sender and receiver use one buffer each, over and over: a message that
fits the processor's caches measures those and not memory. The tool reports 2^20 bytes as MB.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from bench.contestant import Contestant, Failed, Skipped

_WITHIN_S = 120.0
_CONNECT_S = 10.0
#: With one or two the tool's own first messages are timed, which are forty times slower.
_WARMUP_MESSAGES = 10
_MEBIBYTE = 1 << 20
#: TCP_LISTEN as /proc/net/tcp writes it.
_LISTENING = "0A"


class UcxPerftest(Contestant):
    """A contestant: server and client of the tool, fresh in each run."""

    def __init__(
        self, name: str, payload_bytes: int, message_bytes: int, env: Mapping[str, str]
    ) -> None:
        super().__init__(name)
        self.note = f"messages of {message_bytes:,} bytes"
        self._payload_bytes = payload_bytes
        self._message_bytes = message_bytes
        self._env = {**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n", **env}
        self._command: list[str] = []

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        root = _libucx()
        tool = root / "bin" / "ucx_perftest"
        if not tool.is_file():
            raise Skipped(f"the libucx package has no {tool.name}")
        self._env["LD_LIBRARY_PATH"] = str(root / "lib")
        messages = max(1, -(-self._payload_bytes // self._message_bytes))
        self._command = [
            *(str(tool), "-t", "tag_bw", "-f"),
            *("-s", str(self._message_bytes)),
            *("-n", str(messages), "-w", str(_WARMUP_MESSAGES)),
        ]

    def run(self) -> float:
        """Seconds for the payload at the rate that the tool reports."""
        port = _free_port()
        server = self._start(["-p", str(port)])
        try:
            client = self._connect(port)
            try:
                output = client.communicate(timeout=_WITHIN_S)[0]
            finally:
                _end(client)
            server.communicate(timeout=_CONNECT_S)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"ucx_perftest did not end within {error.timeout:g} s") from error
        finally:
            _end(server)
        return self._payload_bytes / rate_bytes_per_s(output)

    def close(self) -> None:
        """Nothing runs between runs."""

    def _start(self, arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *arguments],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def _connect(self, port: int) -> subprocess.Popen[str]:
        deadline_s = time.monotonic() + _CONNECT_S
        while not _listens(port):
            if time.monotonic() > deadline_s:
                raise Failed(f"ucx_perftest did not listen within {_CONNECT_S:g} s")
            time.sleep(0.01)
        return self._start(["127.0.0.1", "-p", str(port)])


def rate_bytes_per_s(output: str) -> float:
    """The overall bandwidth of the tool's final line (`-f`), in bytes a second.

    Raises:
        Failed: there is no such line.
    """
    for line in reversed(output.splitlines()):
        fields = line.split()
        # iterations, overhead (percentile, average, overall), MB/s (average, overall), messages/s
        if len(fields) == 8 and fields[0].isdigit():
            with contextlib.suppress(ValueError):
                return float(fields[5]) * _MEBIBYTE
    tail = " | ".join(output.strip().splitlines()[-3:])
    raise Failed(f"ucx_perftest gave no figure: {tail}")


def _libucx() -> Path:
    try:
        import libucx
    except ImportError as error:
        raise Skipped(f"no ucx_perftest: {error}") from error
    return Path(libucx.__path__[0])


def _listens(port: int) -> bool:
    """Whether somebody listens; without connecting, which the server would take for its client."""
    wanted = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = (line.split() for line in lines)
    return any(fields[1].endswith(wanted) and fields[3] == _LISTENING for fields in sockets)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
