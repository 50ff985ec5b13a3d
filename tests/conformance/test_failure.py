"""When UCX itself breaks, every request ends, nobody waits for ever, and the owner is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.plane import Plane, Work
from services.mover.transport.threadplane import ThreadPlane
from services.mover.transport.ucx import UcxTransport
from worldline.errors import TransferFailed, Unavailable

TAG = 13 << 40


@pytest.mark.parametrize("plane", [ThreadPlane, LoopPlane])
async def test_a_plane_that_raises_fails_everything(plane: Callable[[Work], Plane]) -> None:
    one, other = UcxTransport(plane=plane), UcxTransport()
    await one.start()
    await other.start()
    watching = asyncio.ensure_future(one.watch())
    try:
        endpoint = await one.connect(other.address)
        parked = await one.connect(other.address)
        await one.park(parked)
        receives = [endpoint.receive(memoryview(bytearray(100)), TAG + i) for i in range(5)]
        await asyncio.sleep(0.05)
        assert not any(receive.terminal for receive in receives)
        assert not watching.done()
        worker = one._worker
        assert worker is not None

        def broken() -> bool:
            raise RuntimeError("progress is broken")

        worker._progress = broken  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            for receive in receives:
                with pytest.raises(TransferFailed, match="progress is broken") as caught:
                    await receive.wait()
                assert caught.value.reason == "DATA_PLANE_FAILED"
            with pytest.raises(Unavailable, match="progress is broken"):
                await watching
            with pytest.raises(Unavailable):
                await one.connect(other.address)
            late = endpoint.send(memoryview(bytearray(10)), TAG)
            with pytest.raises(TransferFailed):
                await late.wait()
            await endpoint.abort()
            await one.stop()
        assert one.census()["requests_outstanding"] == 0
    finally:
        watching.cancel()
        async with asyncio.timeout(60):
            await one.stop()
            await other.stop()
