"""Services: one admission and a mover for each node, as processes inside their namespaces.

Placement's part is played by whoever uses this: it asks admission, has the target reserve and the
source push, and reports how it ended. Moves carry states that nobody computes on, because two cores
are to be kept free for the wire.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.fabric.enter import NAMESPACE_VARIABLE
from tests.fabric.namespaces import FABRIC, Fabric, Node
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.rpc.channel import ChannelPool, call
from worldline.v1 import admission_pb2, admission_pb2_grpc, mover_pb2, mover_pb2_grpc

#: Seven interpreters start at once on two cores.
START_S = 60.0
STOP_S = 30.0
CALL_S = 60.0
ADMISSION = "admission"
#: UCX over TCP and nothing else, on the shaped link and nowhere else.
UCX = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": FABRIC}
#: Kept, not held: what an allocator keeps, free slots, and what is remembered for a bounded time.
KEPT = frozenset({"resident_bytes", "slots_free", "registrations", "tickets_remembered"})

Census = dict[str, dict[str, int]]


class Services:
    """The processes of one fabric, and calls to them."""

    def __init__(self, processes: Mapping[str, ServiceProcess], channels: ChannelPool) -> None:
        self._processes = dict(processes)
        self._channels = channels

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes, in order."""
        return [name for name in self._processes if name != ADMISSION]

    def address(self, name: str) -> str:
        """host:port of a node's mover, or of admission."""
        return self._processes[name].address

    def mover(self, name: str) -> mover_pb2_grpc.MoverServiceStub:
        """A node's mover."""
        return self._channels.stub(mover_pb2_grpc.MoverServiceStub, self.address(name))

    @property
    def admission(self) -> admission_pb2_grpc.AdmissionServiceStub:
        """Admission."""
        stub = admission_pb2_grpc.AdmissionServiceStub
        return self._channels.stub(stub, self.address(ADMISSION))

    async def describe_mover(self, name: str) -> mover_pb2.DescribeMoverResponse:
        """What a mover holds."""
        request = mover_pb2.DescribeMoverRequest()
        answer: mover_pb2.DescribeMoverResponse = await call(
            self.mover(name).DescribeMover, request, timeout_s=CALL_S
        )
        return answer

    async def describe_admission(self) -> admission_pb2.DescribeAdmissionResponse:
        """What admission holds, knows and has counted."""
        request = admission_pb2.DescribeAdmissionRequest()
        answer: admission_pb2.DescribeAdmissionResponse = await call(
            self.admission.DescribeAdmission, request, timeout_s=CALL_S
        )
        return answer

    async def census(self) -> Census:
        """What every process holds that it should not hold for ever."""
        found: Census = {}
        for name in self.nodes:
            mover = await self.describe_mover(name)
            own = {
                "slots_used": sum(bool(slot.session_id) for slot in mover.slots),
                "reservations_open": len(mover.reservations),
                "wires_open": len(mover.wires),
            }
            found[name] = {**own, **_held(mover.census.counts)}
        if ADMISSION in self._processes:
            admission = await self.describe_admission()
            own = {"holds_open": len(admission.holds)}
            found[ADMISSION] = {**own, **_held(admission.census.counts)}
        return found

    def pids(self, *names: str) -> list[int]:
        """These processes, admission if there is one, and the driver, which is this one."""
        wanted = {*names, ADMISSION}
        found = [process.pid for name, process in self._processes.items() if name in wanted]
        return [*found, os.getpid()]

    def processor_s(self) -> float:
        """Processor time of all processes so far, the kernel's part for them included."""
        ticks = 0
        for process in self._processes.values():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / 100


@asynccontextmanager
async def services_of(
    fabric: Fabric,
    directory: Path,
    *,
    slot_count: int,
    slot_bytes: int,
    admission_address: str = "",
    mover: Mapping[str, str] | None = None,
    admission: Mapping[str, str] | None = None,
) -> AsyncIterator[Services]:
    """Start everything inside; stop all of it in the end. The mappings are further settings.

    No admission is started where movers are to believe another.

    Raises:
        Unavailable: a service did not start; its last lines are in the message.
    """
    channels = ChannelPool()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(channels.close)
        processes: dict[str, ServiceProcess] = {}
        address = admission_address
        if not address:
            spec = _spec(ADMISSION, ADMISSION, fabric.driver, admission or {}, {})
            processes[ADMISSION] = await _started(stack, spec, directory)
            address = await processes[ADMISSION].ready(START_S)
        for name, node in fabric.nodes.items():
            variables = {
                "node_id": name,
                "admission_address": address,
                "lane": "tcp",
                "slot_count": str(slot_count),
                "slot_bytes": str(slot_bytes),
                "runtime_dir": str(directory),
                **(mover or {}),
            }
            spec = _spec(name, "mover", node, variables, UCX)
            processes[name] = await _started(stack, spec, directory)
        await asyncio.gather(
            *(each.ready(START_S) for each in processes.values() if not each.address)
        )
        yield Services(processes, channels)


def _spec(
    name: str, service: str, node: Node, variables: Mapping[str, str], env: Mapping[str, str]
) -> ServiceSpec:
    return ServiceSpec(
        name=name,
        service=service,
        entry=f"tests.fabric.enter:{service}",
        variables={"listen": f"{node.control_ip}:0", "log_level": "warning", **variables},
        env={NAMESPACE_VARIABLE: node.namespace, **env},
    )


async def _started(stack: AsyncExitStack, spec: ServiceSpec, directory: Path) -> ServiceProcess:
    process = await ServiceProcess.start(spec, directory / f"{spec.name}.log")
    stack.callback(process.close)
    stack.push_async_callback(process.stop, STOP_S)
    return process


def _held(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name not in KEPT}
