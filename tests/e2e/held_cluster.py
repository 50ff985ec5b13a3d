"""Held cluster: two nodes whose movers stop before a send that a test names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.hold import HELD_MOVER, Hold
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions

#: The state of a `tiny` world is two chunks of a mebibyte: before the second half has moved, before
#: the seal everything.
FIRST, HALF, ALL = 1, 2, 3
#: Longer than any test holds anything.
LEASE_MS = 240_000


@asynccontextmanager
async def held_cluster(
    directory: Path, *, lease_ms: int = LEASE_MS, placement_variables: dict[str, str] | None = None
) -> AsyncIterator[tuple[LocalCluster, Hold]]:
    """One chunk at a time, and a wire's lease of `lease_ms`."""
    hold = Hold(directory)
    variables = {"chunk_bytes": str(1 << 20), "window_chunks": "1"}
    node = NodeOptions(mover_entry=HELD_MOVER, mover_variables=variables, env=hold.env)
    options = ClusterOptions(
        slots=3,
        start_timeout_s=240,
        slot_bytes=16 << 20,
        admission_variables={"lease_min_ms": str(lease_ms)},
        placement_variables=placement_variables or {},
        node_options={"node-1": node, "node-2": node},
    )
    async with LocalCluster(options) as running:
        yield running, hold
