"""Fixtures: clusters of two movers over each transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from services.mover.transport.base import Transport
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import Cluster, start_admission, start_node
from tests.unit.mover.faulty import FaultyTransport
from tests.unit.mover.spoiled_wire import FACTORIES, LAYOUT, SIZES, Wire

TRANSPORTS: dict[str, Callable[[], Transport]] = {"memory": MemoryTransport, "ucx": UcxTransport}


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Builds a cluster from two transports; everything is stopped after the test."""
    async with AsyncExitStack() as stack:

        async def build(source: Transport, target: Transport, **changes: Any) -> Cluster:
            admission, address = await start_admission(stack)
            nodes = {}
            for node_id, transport in (("a", source), ("b", target)):
                nodes[node_id] = await start_node(
                    stack, node_id, tmp_path, address, transport, **changes
                )
            return Cluster(admission, nodes)

        yield build


@pytest.fixture
async def memory_cluster(build: Callable[..., Any]) -> Cluster:
    return await build(MemoryTransport(), MemoryTransport())


@pytest.fixture(params=sorted(TRANSPORTS))
async def cluster(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Cluster:
    factory = TRANSPORTS[request.param]
    return await build(factory(), factory())


@pytest.fixture(params=["in-place", "memory", "on-the-loop"])
async def wire(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Wire:
    factory = FACTORIES[request.param]
    ends = {name: FaultyTransport(factory()) for name in ("a", "b")}
    cluster = await build(ends["a"], ends["b"], **SIZES)
    return Wire(cluster, ends, await cluster.live_slot(LAYOUT))
