"""The last slot of a node, held by a probe in the middle of its bytes: a session has it."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import PATIENT, SEED, SLOTS, Fault
from tests.oracles import BOUND_S, bounded, play, until
from worldline.cli.cluster import LocalCluster
from worldline.rpc.channel import call, open_channel
from worldline.sdk import Client
from worldline.v1 import doctor_pb2, doctor_pb2_grpc
from worldline.verdict import RejectReason, verdict_from_proto

pytestmark = pytest.mark.asyncio(loop_scope="session")

TARGET = "node-2"


async def measure(cluster: LocalCluster) -> doctor_pb2.MeasurePathResponse:
    """Probe the path into the target, as `worldline doctor` does."""
    async with open_channel(cluster.placement_address) as channel:
        request = doctor_pb2.MeasurePathRequest(
            source_node_id="node-1", target_node_id=TARGET, push_bytes_max=1 << 20, within_ms=1000
        )
        stub = doctor_pb2_grpc.FleetDoctorServiceStub(channel)
        answer: doctor_pb2.MeasurePathResponse = await call(
            stub.MeasurePath, request, timeout_s=BOUND_S
        )
        return answer


async def slots(client: Client, *, free: int, live: int, shadow: int) -> list[str]:
    """Nothing where the target has so many, as its mover's last renewal had it."""
    (node,) = [one for one in await client.nodes() if one.node_id == TARGET]
    (device,) = node.devices
    found = (device.slots_free, device.slots_live, device.slots_shadow)
    return [] if found == (free, live, shadow) else [f"{TARGET}: free, live, shadow are {found}"]


async def test_a_probe_gives_way_to_whoever_opens(
    faulty_cluster: LocalCluster, fault: Fault
) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        # Its engine is warm then, and what follows is over before the probe's lease.
        async with await client.open("tiny", seed=SEED, contract=PATIENT, node=TARGET):
            pass
        fault.arm("hold")
        measuring = asyncio.ensure_future(measure(faulty_cluster))
        await fault.held()
        # Known to everybody who decides, and counted by nobody.
        await until(lambda: slots(client, free=SLOTS, live=0, shadow=1))
        async with bounded():
            sessions = [
                await client.open("tiny", seed=SEED + one, contract=PATIENT, node=TARGET)
                for one in range(SLOTS)
            ]
        answer = await measuring
        assert not answer.pushes
        assert verdict_from_proto(answer.refused).reason is RejectReason.TARGET_FULL
        assert "gave its slot" in answer.refused.explanation
        for session in sessions:
            assert [block.index for block in await play(session, 0, 2)] == [0, 1]
            await session.close()
        await until(lambda: slots(client, free=SLOTS, live=0, shadow=0), BOUND_S)
        assert (await measure(faulty_cluster)).pushes
