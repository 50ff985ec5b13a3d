"""A real mover over real UCX that stops before one of its sends until a test lets it go on.

Run in place of the mover. The file `hold` in WORLDLINE_TEST_HOLD_DIR says `NODE NTH`: before the
NTH send of that node's next transfer it creates `held` and sends nothing more until there is `go`.
Chunks are sends, in order, and so is the seal that follows them. The file `later-NODE` says seconds
by which that node's clock goes on at once; it is gone when it has.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.mover.main import main as mover_main
from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from services.mover.transport.ucx import UcxTransport
from worldline.errors import TransferFailed

HOLD_DIR = "WORLDLINE_TEST_HOLD_DIR"
_POLL_S = 0.002
_CLOCK_POLL_S = 0.02


class HeldEndpoint(Endpoint):
    """Passes everything on, one send later than the others."""

    def __init__(self, inner: Endpoint, directory: Path, node_id: str) -> None:
        self.inner = inner
        self._directory = directory
        self._node_id = node_id
        self._sends = 0
        self._held: dict[Request, asyncio.Task[None]] = {}

    @property
    def alive(self) -> bool:
        return self.inner.alive

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        self._sends += 1
        hold = self._directory / "hold"
        node_id, nth = hold.read_text().split() if hold.exists() else ("", "0")
        if (node_id, int(nth)) != (self._node_id, self._sends):
            return self.inner.send(buffer, tag, reader)
        hold.unlink()
        request = Request("send", tag, buffer.nbytes)
        self._held[request] = asyncio.create_task(self._send(request, buffer, tag, reader))
        (self._directory / "held").touch()
        return request

    async def _send(
        self, request: Request, buffer: Buffer, tag: int, reader: Reader | None
    ) -> None:
        while not (self._directory / "go").exists():  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(_POLL_S)
        inner = self.inner.send(buffer, tag, reader)
        await inner.settled()
        request.end(inner.error)

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        return self.inner.receive(buffer, tag, reader)

    def lanes(self) -> tuple[str, ...]:
        return self.inner.lanes()

    async def close(self) -> None:
        await self.inner.close()

    async def abort(self) -> None:
        await self.inner.abort()
        for request, task in self._held.items():
            if not (self._directory / "go").exists():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            request.end(TransferFailed("aborted while held", reason="CANCELLED"))


class HeldTransport(UcxTransport):
    """UCX with `HeldEndpoint`s, in a process whose clock a test can put on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._directory = Path(os.environ[HOLD_DIR])
        self._node_id = os.environ["WORLDLINE_MOVER_NODE_ID"]
        self._clock: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._clock = asyncio.create_task(self._keep_clock(), name="clock")

    async def stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)
        await super().stop()

    async def _keep_clock(self) -> None:
        loop, said = asyncio.get_running_loop(), self._directory / f"later-{self._node_id}"
        while True:
            await asyncio.sleep(_CLOCK_POLL_S)
            if said.exists():
                plain, by_s = loop.time, float(said.read_text())
                loop.time = lambda plain=plain, by_s=by_s: plain() + by_s  # type: ignore[method-assign,misc]
                said.unlink()

    async def connect(self, address: bytes) -> Endpoint:
        inner = await super().connect(address)
        return HeldEndpoint(inner, self._directory, self._node_id)

    async def park(self, endpoint: Endpoint) -> None:
        await super().park(endpoint.inner if isinstance(endpoint, HeldEndpoint) else endpoint)


def held_transport(cuda_devices: Sequence[int]) -> UcxTransport:
    return HeldTransport(cuda_devices=cuda_devices)


def main() -> None:
    """The mover's own main, on a wire that can be held."""
    mover_main(held_transport)
