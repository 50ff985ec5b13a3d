"""All transports under one suite: a pair of peers in this process, and a killable one outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from services.mover.transport.base import Transport
from services.mover.transport.lanes import Lane
from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from tests.conformance.staged import StagedTransport

#: UCX over every lane that a mover may be set to, and run by the event loop where devices move the
#: bytes. And two with every byte staged in between.
FACTORIES: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "ucx": UcxTransport,
    "ucx-posix": lambda: UcxTransport(lane=Lane.POSIX),
    "ucx-cma": lambda: UcxTransport(lane=Lane.CMA),
    "ucx-tcp": lambda: UcxTransport(lane=Lane.TCP),
    "ucx-on-the-loop": lambda: UcxTransport(plane=LoopPlane),
    "ucx-on-the-loop-tcp": lambda: UcxTransport(plane=LoopPlane, lane=Lane.TCP),
    "memory-staged": lambda: StagedTransport(MemoryTransport()),
    "ucx-staged": lambda: StagedTransport(UcxTransport()),
}


@pytest.fixture(params=sorted(FACTORIES))
def factory(request: pytest.FixtureRequest) -> Callable[[], Transport]:
    return FACTORIES[request.param]


@pytest.fixture
async def peers(factory: Callable[[], Transport]) -> AsyncIterator[tuple[Transport, Transport]]:
    """Two started transports; after the test neither may hold anything."""
    async with AsyncExitStack() as stack:
        started = []
        for _ in range(2):
            transport = factory()
            await transport.start()
            stack.push_async_callback(transport.stop)
            started.append(transport)
        async with asyncio.timeout(60):
            yield started[0], started[1]
        for transport in started:
            census = transport.census()
            assert census["requests_outstanding"] == 0, census
