"""When UCX itself breaks, every request ends, nobody waits for ever, and the owner is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from services.mover.transport.base import Buffer
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


@pytest.mark.parametrize("plane", [ThreadPlane, LoopPlane])
async def test_a_registration_whose_caller_has_gone_is_taken_back(
    plane: Callable[[Work], Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """UCX has made it by then, and nobody else knows of it."""
    transport = UcxTransport(plane=plane)
    await transport.start()
    worker = transport._worker
    assert worker is not None
    made: list[int] = []
    map_, unmap = worker.map, worker.unmap

    def mapped(buffer: Buffer) -> int:
        made.append(map_(buffer))
        return made[-1]

    def unmapped(handle: int) -> None:
        made.remove(handle)
        unmap(handle)

    monkeypatch.setattr(worker, "map", mapped)
    monkeypatch.setattr(worker, "unmap", unmapped)
    memory = memoryview(bytearray(1 << 16))
    async with asyncio.timeout(60):
        for _ in range(5):
            registering = asyncio.create_task(transport.register(memory))
            await asyncio.sleep(0)
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            assert registering.cancelled()
            assert made == []
            assert transport.census()["registrations"] == 0
        await transport.register(memory)
        assert len(made) == transport.census()["registrations"] == 1
        await transport.unregister(memory)
        assert made == []
        await transport.stop()
