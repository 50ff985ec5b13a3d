"""A real mover on real GPUs in which one bit changes at a moment that a test chooses.

Run in place of the mover. The file `change` in WORLDLINE_TEST_TAMPER_DIR says, as JSON, which
node's mover it is for, the place (see `tests.device_tampering`), and the bit: slot, offset, bit.
It is removed once the bit has been changed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.mover.main import main as mover_main
from services.mover.runtime import MoverRuntime
from services.mover.transport.base import Endpoint
from services.mover.transport.ucx import UcxTransport
from tests.device_tampering import Change, DeviceTamper, TamperedEndpoint
from worldline.cuda.buffer import DeviceBuffer

TAMPER_DIR = "WORLDLINE_TEST_TAMPER_DIR"
CHANGE = "change"


class Orders:
    """The change that the test wants of this mover, if it wants one now."""

    def __init__(self) -> None:
        self._path = Path(os.environ[TAMPER_DIR]) / CHANGE
        self.runtime: MoverRuntime | None = None

    def wanted(self) -> Change | None:
        try:
            order = json.loads(self._path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        if self.runtime is None or order["node"] != self.runtime.node_id:
            return None
        whole = self.runtime._memories[order["slot_index"]].whole
        if not isinstance(whole, DeviceBuffer):
            return None
        return Change(order["place"], whole.address + order["offset_bytes"], order["bit"])

    def done(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def main() -> None:
    """The mover's own main, with hooks."""
    orders = Orders()
    tamper = DeviceTamper(orders.wanted, orders.done)
    patch = pytest.MonkeyPatch()
    tamper.install(patch)
    start = MoverRuntime.start

    async def remembered(runtime: MoverRuntime) -> None:
        await start(runtime)
        orders.runtime = runtime

    patch.setattr(MoverRuntime, "start", remembered)

    class TamperedTransport(UcxTransport):
        async def connect(self, address: bytes) -> Endpoint:
            return TamperedEndpoint(await super().connect(address), tamper)

        async def park(self, endpoint: Endpoint) -> None:
            await super().park(
                endpoint.inner if isinstance(endpoint, TamperedEndpoint) else endpoint
            )

    def transport(cuda_devices: Sequence[int]) -> UcxTransport:
        return TamperedTransport(cuda_devices=cuda_devices)

    mover_main(transport)
