"""Two mover processes without engines or placement, for states that a test lays out itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.engine.device import EngineDevice
from services.engine.peers import MoverSlots
from tests.unit.mover.cluster import Cluster, start_admission
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.rpc.channel import ChannelPool, call
from worldline.v1 import mover_pb2, mover_pb2_grpc

START_S = 120.0
STOP_S = 30.0
CALL_S = 60.0


@dataclass(frozen=True)
class MoverNode:
    """One mover process, as `Cluster` wants to see it, and its slots, as an engine does."""

    process: ServiceProcess
    channels: ChannelPool
    device: EngineDevice

    @property
    def address(self) -> str:
        return self.process.address

    @property
    def stub(self) -> mover_pb2_grpc.MoverServiceStub:
        return mover_pb2_grpc.MoverServiceStub(self.channels.get(self.address))

    @property
    def slots(self) -> MoverSlots:
        return MoverSlots(self.channels, self.address, CALL_S, self.device)


@asynccontextmanager
async def mover_pair(
    directory: Path,
    slot_bytes: int,
    devices: Mapping[str, EngineDevice],
    *,
    entry: str = "services.mover.main:main",
    env: Mapping[str, str] | None = None,
    **settings: str,
) -> AsyncIterator[Cluster]:
    """A mover for each of the nodes, with two slots on the device that is given."""
    async with AsyncExitStack() as stack:
        admission, address = await start_admission(stack)
        channels = ChannelPool()
        stack.push_async_callback(channels.close)
        nodes: dict[str, Any] = {}

        async def start(node_id: str, device: EngineDevice) -> None:
            spec = ServiceSpec(
                name=f"mover-{node_id}",
                service="mover",
                entry=entry,
                variables={
                    "listen": "127.0.0.1:0",
                    "node_id": node_id,
                    "admission_address": address,
                    "devices": device.name,
                    "slot_count": "2",
                    "slot_bytes": str(slot_bytes),
                    "runtime_dir": str(directory),
                    **settings,
                },
                env=env or {},
            )
            nodes[node_id] = MoverNode(await _start(stack, spec, directory), channels, device)

        await asyncio.gather(*(start(*each) for each in devices.items()))
        yield Cluster(admission, {node_id: nodes[node_id] for node_id in devices})


async def _start(stack: AsyncExitStack, spec: ServiceSpec, directory: Path) -> ServiceProcess:
    process = await ServiceProcess.start(spec, directory / f"{spec.name}.log")
    stack.callback(process.close)
    stack.push_async_callback(process.stop, STOP_S)
    await process.ready(START_S)
    return process


async def restarted(stack: AsyncExitStack, node: MoverNode) -> MoverNode:
    """The mover of a node whose process has ended, again under its name and at its address."""
    variables = {**node.process.spec.variables, "listen": node.address}
    spec = replace(node.process.spec, variables=variables)
    process = await _start(stack, spec, node.process.log_path.parent)
    return MoverNode(process, node.channels, node.device)


async def occupied(movers: Cluster) -> list[str]:
    """Slots and reservations that somebody holds; none once all is given back."""
    complaints = []
    for name, node in movers.nodes.items():
        request = mover_pb2.DescribeMoverRequest()
        answer = await call(node.stub.DescribeMover, request, timeout_s=CALL_S)
        complaints += [f"{name}: {each}" for each in answer.slots if each.session_id]
        complaints += [f"{name}: {each}" for each in answer.reservations]
    return complaints
