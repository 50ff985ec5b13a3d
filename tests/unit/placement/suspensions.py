"""Suspend and resume as clients ask for them at placement, and what must hold afterwards."""

from __future__ import annotations

from typing import Any

from tests.unit.placement.cluster import Cluster
from worldline.v1 import move_pb2, park_pb2, placement_pb2


async def suspend(cluster: Cluster, session_id: str, **fields: Any) -> Any:
    request = placement_pb2.SuspendSessionRequest(session_id=session_id, **fields)
    return await cluster.ask("SuspendSession", request)


async def resume(cluster: Cluster, session_id: str, **fields: Any) -> Any:
    request = placement_pb2.ResumeSessionRequest(session_id=session_id, **fields)
    return await cluster.ask("ResumeSession", request)


async def record(cluster: Cluster, suspension_id: str) -> park_pb2.SuspensionRecord:
    request = placement_pb2.GetSuspensionRequest(suspension_id=suspension_id)
    return (await cluster.ask("GetSuspension", request)).suspension


async def close(cluster: Cluster, session_id: str) -> None:
    await cluster.ask("CloseSession", placement_pb2.CloseSessionRequest(session_id=session_id))


async def settle(cluster: Cluster) -> None:
    """Until nothing is under way."""
    assert cluster.placement is not None
    for task in list(cluster.placement.suspensions._tasks.values()):
        await task.ended(15)


async def renew(cluster: Cluster, name: str = "n1", incarnation: str = "j1") -> Any:
    """What the node's mover holds, told; what the directory answers."""
    mover = cluster.movers[name]
    request = placement_pb2.RenewNodeRequest(node_id=name, incarnation=incarnation)
    for (index, generation), (session_id, role) in mover.slots.items():
        request.slots.add(
            slot=move_pb2.SlotRef(node_id=name, slot_index=index, generation=generation),
            role=move_pb2.SLOT_ROLE_LIVE if role == "live" else move_pb2.SLOT_ROLE_SHADOW,
            session_id=session_id,
            age_ms=60_000,
            device="cpu",
        )
    for park_id, (session_id, kind, _) in mover.parked.items():
        request.parked.add(park_id=park_id, session_id=session_id, kind=kind, age_ms=60_000)
    return await cluster.ask("RenewNode", request)


def check_suspended(cluster: Cluster, session_id: str) -> None:
    """Nobody has the world, no slot holds it, exactly one copy does."""
    assert cluster.running(session_id) == []
    assert all(session_id not in engine.worlds for engine in cluster.engines.values())
    assert all(not mover.slots for mover in cluster.movers.values())
    copies = [one[0] for mover in cluster.movers.values() for one in mover.parked.values()]
    assert copies == [session_id]
    cluster.check_idle()


def check_live(cluster: Cluster, session_id: str, engine: str = "e1") -> None:
    cluster.check_at(session_id, engine)
    assert all(not mover.parked for mover in cluster.movers.values())
