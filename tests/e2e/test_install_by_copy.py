"""Worlds move between an engine that maps its slots and one that copies from them (fault 30)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.conftest import ROOT, make_stage
from tests.oracles import bounded
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.sdk import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWNING_ENGINE = NodeOptions(
    engine_entry="tests.e2e.owning_engine:main", env={"PYTHONPATH": str(ROOT)}
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    options = ClusterOptions(slots=3, slot_bytes=16 << 20, node_options={"node-2": OWNING_ENGINE})
    async with LocalCluster(options) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with Client(cluster.placement_address) as connected:
        yield connected


async def test_there_and_back(cluster: LocalCluster, client: Client) -> None:
    stage = await make_stage(cluster, client, blocks=8)
    session = stage.session
    async with bounded():
        record = await session.move("node-2")
        record.raise_unless_committed()
        assert record.source_digest == record.target_digest
    await stage.oracles.hold(session, stage.twin, 2, node_id="node-2")
    async with bounded():
        (await session.move("node-1")).raise_unless_committed()
    await stage.oracles.hold(session, stage.twin, 5, node_id="node-1")
    await session.close()


async def test_a_move_given_up_leaves_the_tensors_as_they_were(
    cluster: LocalCluster, client: Client
) -> None:
    stage = await make_stage(cluster, client, blocks=8)
    session = stage.session
    async with bounded():
        (await session.move("node-2")).raise_unless_committed()
    await stage.oracles.hold(session, stage.twin, 2, node_id="node-2")
    async with bounded():
        await session.admit("node-1")
        await session.migrate()
        await session.rollback()
    await stage.oracles.hold(session, stage.twin, 5, node_id="node-2")
    await session.close()
