"""A real mover over real UCX whose wire misbehaves on demand; its faults are armed by a file.

Run in place of the mover through `NodeOptions.mover_entry`. Unarmed it is the product itself. The
file `arm` in WORLDLINE_TEST_FAULT_DIR holds `KIND NTH`: at the NTH send of the next transfer

- `flip` sends a copy with one bit changed,
- `hold` sends nothing, says so in the file `held`, and leaves the request open until it is
  aborted: a transfer stuck in the middle.
"""

from __future__ import annotations

import os
from pathlib import Path

from services.mover.main import main as mover_main
from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from services.mover.transport.ucx import UcxTransport
from worldline.errors import TransferFailed

FAULT_DIR = "WORLDLINE_TEST_FAULT_DIR"
#: Which bit of a flipped chunk: in its first element's exponent, for a bf16 chunk.
FLIPPED_BYTE, FLIPPED_MASK = 1, 0x10


class FaultyEndpoint(Endpoint):
    """Passes everything on but the send that the fault is armed for."""

    def __init__(self, inner: Endpoint, directory: Path) -> None:
        self.inner = inner
        self._directory = directory
        self._sends = 0
        self._held: list[Request] = []

    @property
    def alive(self) -> bool:
        return self.inner.alive

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        self._sends += 1
        arm = self._directory / "arm"
        kind, nth = arm.read_text().split() if arm.exists() else ("", "0")
        if self._sends != int(nth):
            return self.inner.send(buffer, tag, reader)
        arm.unlink()
        if kind == "flip":
            assert isinstance(buffer, memoryview)
            copy = bytearray(buffer)
            copy[FLIPPED_BYTE] ^= FLIPPED_MASK
            flipped = self.inner.send(memoryview(copy), tag)
            if reader is not None:
                reader(0, buffer.nbytes)
            return flipped
        held = Request("send", tag, buffer.nbytes)
        self._held.append(held)
        (self._directory / "held").touch()
        return held

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        return self.inner.receive(buffer, tag, reader)

    def lanes(self) -> tuple[str, ...]:
        return self.inner.lanes()

    async def close(self) -> None:
        await self.inner.close()

    async def abort(self) -> None:
        for request in self._held:
            request.end(TransferFailed("aborted while held"))
        await self.inner.abort()


class FaultyTransport(UcxTransport):
    """UCX with `FaultyEndpoint`s."""

    async def connect(self, address: bytes) -> Endpoint:
        inner = await super().connect(address)
        return FaultyEndpoint(inner, Path(os.environ[FAULT_DIR]))

    async def park(self, endpoint: Endpoint) -> None:
        await super().park(endpoint.inner if isinstance(endpoint, FaultyEndpoint) else endpoint)


def main() -> None:
    """The mover's own main, on the faulty wire."""
    mover_main(lambda devices: FaultyTransport(cuda_devices=devices))
