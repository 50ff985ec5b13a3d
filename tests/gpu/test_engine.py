"""Worlds on GPUs, with real processes: they move between devices and go on bit for bit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.oracles import bounded, play, signature
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.contract import Contract, ServiceClass
from worldline.cuda.devices import devices
from worldline.sdk import Client
from worldline.sdk.move_record import MovePhase
from worldline.verdict import RejectReason

ROOT = Path(__file__).parents[2]
SEED = 7
PATIENT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=20_000)
#: Two GPUs where there are two; else both nodes are on the one.
PAIR = ("cuda:0", "cuda:1") if len(devices()) > 1 else ("cuda:0",)


@asynccontextmanager
async def running(options: ClusterOptions) -> AsyncIterator[Client]:
    """A cluster of its own for one test, and a client of it."""
    async with (
        bounded(300),
        LocalCluster(options, keep_logs=True) as cluster,
        Client(cluster.placement_address) as client,
    ):
        yield client


async def check_there_and_back(client: Client, preset: str, blocks: int) -> None:
    """Moves twice, some blocks on each owner; every block is the twin's, state and frames."""
    twin = await client.open(preset, seed=SEED, contract=PATIENT, node="node-1")
    expected = [signature(block) for block in await play(twin, 0, 3 * blocks)]
    await twin.close()
    world = await client.open(preset, seed=SEED, contract=PATIENT, node="node-1")
    seen = await play(world, 0, blocks)
    for number, target in enumerate(("node-2", "node-1"), start=1):
        record = await world.move(target)
        record.raise_unless_committed()
        assert record.phase is MovePhase.DONE
        assert record.source_digest == record.target_digest == seen[-1].state_digest
        stats = record.push_stats
        assert stats is not None
        sys.stdout.write(f"{preset}: frozen {record.frozen_ms:.2f} ms, {list(stats.lanes)}\n")
        seen += await play(world, number * blocks, blocks)
    assert [signature(block) for block in seen] == expected
    assert len({block.state_digest for block in seen}) == len(seen)
    await world.close()


@pytest.mark.parametrize("preset", ["tiny", "small"])
async def test_a_world_there_and_back(preset: str) -> None:
    options = ClusterOptions(slots=3, slot_bytes=64 << 20, devices=PAIR)
    async with running(options) as client:
        await check_there_and_back(client, preset, 3)


async def test_the_full_size_world_there_and_back() -> None:
    options = ClusterOptions(slots=2, slot_bytes=1_664 << 20, devices=PAIR)
    async with running(options) as client:
        await check_there_and_back(client, "mg2", 1)


async def test_work_on_a_side_stream_is_done_before_the_first_byte_leaves() -> None:
    """Fault 3: the model's last write is still queued when its block returns; a move at once."""
    entry = NodeOptions(
        engine_entry="tests.gpu.side_stream_engine:main", env={"PYTHONPATH": str(ROOT)}
    )
    options = ClusterOptions(
        slots=3,
        slot_bytes=64 << 20,
        devices=PAIR,
        node_options={"node-1": entry, "node-2": entry},
    )
    async with running(options) as client:
        await check_there_and_back(client, "tiny", 2)


async def test_a_stream_that_plays_while_the_world_moves() -> None:
    options = ClusterOptions(slots=3, slot_bytes=64 << 20, devices=PAIR)
    async with running(options) as client:
        twin = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
        expected = [signature(block) for block in await play(twin, 0, 40)]
        world = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
        playing = asyncio.create_task(play(world, 0, 40))
        for target in ("node-2", "node-1", "node-2"):
            (await world.move(target)).raise_unless_committed()
        seen = await playing
        assert [signature(block) for block in seen] == expected
        await twin.close()
        await world.close()


async def test_nodes_say_their_devices() -> None:
    options = ClusterOptions(slots=2, slot_bytes=16 << 20, devices=PAIR)
    async with running(options) as client:
        first, second = await client.nodes()
    known = devices()
    for node, name in ((first, PAIR[0]), (second, PAIR[-1])):
        (device,) = node.devices
        (engine,) = node.engines
        found = known[int(name.removeprefix("cuda:"))]
        assert (device.name, device.uuid, device.slots_total) == (name, found.uuid, 2)
        assert engine.device_uuid == found.uuid
        assert engine.facts["gpu"] == found.name
        assert set(device.nvlink_peers) == {known[peer].uuid for peer in found.nvlink_peers}
        assert set(device.pcie_peers) == {known[peer].uuid for peer in found.pcie_peers}
    assert first.host_id == second.host_id
    assert first.engines[0].fingerprint == second.engines[0].fingerprint


async def test_a_t0_world_does_not_move_to_another_kind_of_device() -> None:
    options = ClusterOptions(slots=2, slot_bytes=16 << 20, devices=("cuda:0", "cpu"))
    async with running(options) as client:
        world = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
        await play(world, 0, 1)
        record = await world.move("node-2")
        assert record.phase is MovePhase.REJECTED
        assert record.verdict is not None
        assert record.verdict.reason is RejectReason.FINGERPRINT_MISMATCH
        await play(world, 1, 2)
        await world.close()
