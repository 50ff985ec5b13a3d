"""Leftovers: what a world, and then a cluster, must not leave behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from worldline.cli.cluster import LocalCluster, NodeHandle
from worldline.rpc.channel import call, open_channel
from worldline.v1 import (
    engine_pb2,
    engine_pb2_grpc,
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
)

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - listed, never written
_SETTLE_S = 30.0
_POLL_S = 0.1
_CALL_S = 20.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The shared-memory segments there were before."""

    segments: frozenset[str]

    @classmethod
    def before(cls) -> Leftovers:
        """Count now, before the cluster starts."""
        return cls(_segments())

    async def worlds_gone(self, cluster: LocalCluster) -> tuple[bool, str]:
        """Whether movers and engines hold nothing once all sessions are closed.

        Asks them and not the directory; a slot may be in quarantine for a moment.
        """
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            held = [what for node in cluster.nodes.values() for what in await _held_by(node)]
            if not held:
                return True, ""
            if time.monotonic() >= deadline_s:
                return False, ", ".join(held)
            await asyncio.sleep(_POLL_S)

    def compare(self, cluster: LocalCluster) -> tuple[bool, str]:
        """After the cluster stopped: processes, files, shared memory."""
        found = [
            f"process {each.name} ({each.pid})"
            for each in cluster.services.values()
            if each.running or psutil.pid_exists(each.pid)
        ]
        found += [f"file {path}" for path in [cluster.path] if path.exists()]
        found += [f"segment {name}" for name in sorted(_segments() - self.segments)]
        return not found, ", ".join(found)


async def _held_by(node: NodeHandle) -> list[str]:
    async with open_channel(node.mover.address) as channel:
        stub = mover_pb2_grpc.MoverServiceStub(channel)
        request = mover_pb2.DescribeMoverRequest()
        mover = await call(stub.DescribeMover, request, timeout_s=_CALL_S)
    async with open_channel(node.engine.address) as channel:
        engine_stub = engine_pb2_grpc.EngineServiceStub(channel)
        engine_request = engine_pb2.DescribeEngineRequest()
        engine = await call(engine_stub.DescribeEngine, engine_request, timeout_s=_CALL_S)
    slots = [
        f"{node.node_id} slot {slot.slot.slot_index} {move_pb2.SlotRole.Name(slot.role)}"
        for slot in mover.slots
        if slot.role != move_pb2.SLOT_ROLE_FREE
    ]
    reservations = [f"{node.node_id} reservation {name}" for name in mover.reservations]
    worlds = [f"{node.node_id} world {world.session_id}" for world in engine.worlds]
    return slots + reservations + worlds


def _segments() -> frozenset[str]:
    """Names in the host's shared memory."""
    if not _SHARED_MEMORY.is_dir():
        return frozenset()
    return frozenset(path.name for path in _SHARED_MEMORY.iterdir())
