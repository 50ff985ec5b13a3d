"""Movers: two `worldline-mover` processes, `a` and `b`, with one slot each, and their calls."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contestant import Failed, Skipped
from bench.office import TicketOffice
from services.engine.device import CPU_DEVICE, EngineDevice
from services.engine.slotfetch import map_slot
from services.engine.slotmap import SlotMap
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.errors import Unavailable
from worldline.rpc.channel import ChannelPool, call
from worldline.v1 import move_pb2, mover_pb2, mover_pb2_grpc

SOURCE, TARGET = "a", "b"
OTHER = {SOURCE: TARGET, TARGET: SOURCE}
SESSION = "bench"
_START_S = 60.0
_STOP_S = 5.0
#: The first use of a slot takes its pages, a second or more a gigabyte.
CALL_S = 60.0
_MEBIBYTE = 1 << 20


class Movers:
    """Both movers, and the office whose tickets they take."""

    def __init__(
        self,
        extent_bytes: int,
        *,
        env: Mapping[str, str],
        devices: Mapping[str, EngineDevice] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`env` is for both, `devices` by node (else the CPU), `variables` settings of both."""
        self._slot_bytes = -(-extent_bytes // _MEBIBYTE) * _MEBIBYTE
        self._env = dict(env)
        self._devices = {SOURCE: CPU_DEVICE, TARGET: CPU_DEVICE, **(devices or {})}
        self._variables = dict(variables or {})
        self.office = TicketOffice()
        self._directory = tempfile.TemporaryDirectory(prefix="worldline-bench-")
        self._processes: dict[str, ServiceProcess] = {}
        self._channels = ChannelPool()
        self._running = False

    @property
    def running(self) -> bool:
        """Whether both serve."""
        return self._running

    async def start(self) -> None:
        """Start office and movers and wait until they serve.

        Raises:
            Skipped: a mover says that it cannot work here.
        """
        address = await self.office.start()
        for node in (SOURCE, TARGET):
            self._processes[node] = await self._start(node, address)
        try:
            for process in self._processes.values():
                await process.ready(_START_S)
        except Unavailable as error:
            raise Skipped(error.message) from error
        self._running = True

    async def _start(self, node: str, admission_address: str) -> ServiceProcess:
        directory = Path(self._directory.name)
        variables = {
            "listen": "127.0.0.1:0",
            "node_id": node,
            "admission_address": admission_address,
            "slot_count": "1",
            "slot_bytes": str(self._slot_bytes),
            "runtime_dir": str(directory),
            "devices": self._devices[node].name,
            **self._variables,
        }
        spec = ServiceSpec(
            name=f"mover-{node}",
            service="mover",
            entry="services.mover.launch:main",
            variables=variables,
            env=self._env,
        )
        return await ServiceProcess.start(spec, directory / f"{node}.log")

    async def stop(self) -> None:
        """End everything; idempotent."""
        self._running = False
        await self._channels.close()
        processes, self._processes = self._processes, {}
        await asyncio.gather(*(process.stop(_STOP_S) for process in processes.values()))
        for process in processes.values():
            process.close()
        await self.office.stop()
        self._directory.cleanup()

    def address(self, node: str) -> str:
        """host:port of a mover."""
        return self._processes[node].address

    def stub(self, node: str) -> mover_pb2_grpc.MoverServiceStub:
        """A mover's calls."""
        return mover_pb2_grpc.MoverServiceStub(self._channels.get(self.address(node)))

    async def call(self, node: str, method: str, request: Any) -> Any:
        """One unary call."""
        return await call(getattr(self.stub(node), method), request, timeout_s=CALL_S)

    async def allocate(self, node: str, extent_bytes: int) -> move_pb2.SlotRef:
        """A LIVE slot."""
        request = mover_pb2.AllocateRequest(session_id=SESSION, extent_bytes=extent_bytes)
        slot: move_pb2.SlotRef = (await self.call(node, "Allocate", request)).slot
        return slot

    async def map(self, node: str, slot: move_pb2.SlotRef) -> SlotMap:
        """A slot's memory in this process."""
        request = mover_pb2.MapSlotRequest(slot=slot, session_id=SESSION)
        answer = await self.call(node, "MapSlot", request)
        return await asyncio.to_thread(
            map_slot,
            answer.socket_path,
            answer.token,
            answer.slot_bytes,
            _START_S,
            self._devices[node],
        )

    async def release(self, node: str, slot: move_pb2.SlotRef) -> None:
        """Give a slot back.

        Raises:
            Failed: it was no longer ours.
        """
        request = mover_pb2.ReleaseRequest(slot=slot, session_id=SESSION)
        if not (await self.call(node, "Release", request)).released:
            raise Failed(f"mover {node} had let go of its slot")
