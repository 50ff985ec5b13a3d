"""Aftermath: once every world is closed, nothing of any is left anywhere."""

from __future__ import annotations

from tests.oracles import MOVES_MAX, Oracles, until
from worldline.cli.cluster import LocalCluster
from worldline.rpc.channel import call, open_channel
from worldline.sdk import Client
from worldline.v1 import engine_pb2, engine_pb2_grpc

#: Longer than any lease, ticket or silence that something may rest on.
_LIMIT_S = 240.0


async def aftermath(cluster: LocalCluster, client: Client, calm: Oracles) -> list[str]:
    """What is left, in words; `calm` was observed before the first world."""
    complaints: list[str] = []
    for holds in (
        lambda: _slots(client),
        lambda: _moves(client),
        lambda: _engines(cluster),
        lambda: calm._leaks(frozenset()),
    ):
        try:
            await until(holds, _LIMIT_S)
        except AssertionError as error:
            complaints.append(str(error))
    return complaints


async def _slots(client: Client) -> list[str]:
    found = []
    for node in await client.nodes():
        if not node.alive:
            found.append(f"{node.node_id} is taken for dead")
        for device in node.devices:
            held = device.slots_live + device.slots_shadow + device.slots_quarantined
            if held or device.slots_free != device.slots_total:
                found.append(
                    f"{node.node_id} {device.name}: {device.slots_free} of {device.slots_total} "
                    f"slots free, {device.slots_live} live, {device.slots_shadow} shadow, "
                    f"{device.slots_quarantined} quarantined"
                )
    left = [f"{one.session_id} is {one.state}" for one in await client.sessions()]
    return found + [text for text in left if not text.endswith("closed")]


async def _moves(client: Client) -> list[str]:
    return [
        f"move {record.move_id} is still {record.phase.name}"
        for record in await client.moves(limit=MOVES_MAX)
        if not record.phase.terminal
    ]


async def _engines(cluster: LocalCluster) -> list[str]:
    found = []
    for name, service in cluster.services.items():
        if service.spec.service != "engine":
            continue
        async with open_channel(service.address) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            answer = await call(
                stub.DescribeEngine, engine_pb2.DescribeEngineRequest(), timeout_s=60
            )
        found += [f"{name} has {world.session_id}, {world.phase}" for world in answer.worlds]
    return found
