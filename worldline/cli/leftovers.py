"""Leftovers: what a cluster must not leave behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from worldline.cli.cluster import LocalCluster
from worldline.sdk import Client

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - listed, never written
#: Movers report their slots with every renewal, a second or two apart.
_SETTLE_S = 8.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The shared-memory segments there were before."""

    segments: frozenset[str]

    @classmethod
    def before(cls) -> Leftovers:
        """Count now, before the cluster starts."""
        return cls(_segments())

    async def slots_freed(self, client: Client) -> tuple[bool, str]:
        """Whether every slot of every node gets free; waits for the movers' next reports."""
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            nodes = await client.nodes()
            used = {
                node.node_id: node.slots_total - node.slots_free
                for node in nodes
                if node.slots_free != node.slots_total
            }
            if not used:
                return True, f"{sum(node.slots_total for node in nodes)} slots"
            if time.monotonic() >= deadline_s:
                return False, f"in use: {used}"
            await asyncio.sleep(_POLL_S)

    def compare(self, cluster: LocalCluster) -> tuple[bool, str]:
        """After the cluster stopped: processes, ports, files, shared memory."""
        found = [
            f"process {each.name} ({each.pid})"
            for each in cluster.services.values()
            if each.running or psutil.pid_exists(each.pid)
        ]
        found += [f"file {path}" for path in [cluster.path] if path.exists()]
        found += [f"segment {name}" for name in sorted(_segments() - self.segments)]
        return not found, ", ".join(found)


def _segments() -> frozenset[str]:
    """Shared memory that belongs to this user's processes, by name."""
    if not _SHARED_MEMORY.is_dir():
        return frozenset()
    return frozenset(path.name for path in _SHARED_MEMORY.iterdir())
