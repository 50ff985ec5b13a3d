"""Live worlds whose movers stall, die and come back in mid-move, judged by every oracle.

The same stalls between movers alone, at every share of the bytes: `test_stalls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.conftest import Stage, make_stage
from tests.e2e.hold import HELD_MOVER, Hold, stopped, until_stopped
from tests.oracles import bounded
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.sdk import Client
from worldline.sdk.move_record import MovePhase, MoveRecord

pytestmark = pytest.mark.timeout(600)

#: The state of a `tiny` world is two chunks of a mebibyte: before the second, half has moved;
#: before the seal, everything.
HALF, ALL = 2, 3
#: Waited for by each stall; the moves that follow have to land within it, on a busy machine.
LEASE_S = 12.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def held(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[LocalCluster, Hold]]:
    """Two nodes whose movers can be held; short leases, one chunk at a time."""
    hold = Hold(tmp_path_factory.mktemp("held"))
    variables = {"chunk_bytes": str(1 << 20), "window_chunks": "1"}
    node = NodeOptions(mover_entry=HELD_MOVER, mover_variables=variables, env=hold.env)
    options = ClusterOptions(
        slots=3,
        slot_bytes=16 << 20,
        admission_variables={"lease_min_ms": str(round(LEASE_S * 1e3))},
        node_options={"node-1": node, "node-2": node},
    )
    async with LocalCluster(options) as running:
        yield running, hold


async def move_held(stage: Stage, hold: Hold, nth: int) -> asyncio.Future[MoveRecord]:
    """A move to node-2 that is held before its `nth` send."""
    hold.arm("node-1", nth)
    moving = asyncio.ensure_future(stage.session.move("node-2"))
    await hold.held()
    return moving


def check_aborted(record: MoveRecord) -> None:
    assert record.phase is MovePhase.ABORTED
    assert record.failure is not None
    assert record.failure.reason in ("LEASE_EXPIRED", "DEADLINE_EXCEEDED", "TARGET_GONE")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("victim", "nth"), [("mover-node-1", HALF), ("mover-node-2", ALL)])
async def test_a_mover_that_stalls_and_goes_on(
    held: tuple[LocalCluster, Hold], victim: str, nth: int
) -> None:
    """The world plays on where it was, and moves once everybody is back."""
    cluster, hold = held
    async with Client(cluster.placement_address) as client:
        stage = await make_stage(cluster, client)
        process = cluster.services[victim]
        async with bounded():
            moving = await move_held(stage, hold, nth)
            with stopped(process):
                await until_stopped(process)
                hold.release()
                record = await moving
            check_aborted(record)
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-1")
        async with bounded():
            (await stage.session.move("node-2")).raise_unless_committed()
        await stage.oracles.hold(stage.session, stage.twin, 5, node_id="node-2")
        await stage.session.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_target_that_dies_and_comes_back_under_its_name(
    held: tuple[LocalCluster, Hold],
) -> None:
    """Fault 14: the source serves its world meanwhile, and the successor as any other."""
    cluster, hold = held
    async with Client(cluster.placement_address) as client:
        stage = await make_stage(cluster, client)
        async with bounded():
            moving = await move_held(stage, hold, HALF)
            await cluster.kill("mover-node-2")
            record = await moving
        assert record.phase is MovePhase.ABORTED
        gone = frozenset({"mover-node-2"})
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-1", gone=gone)
        await cluster.restart("mover-node-2")
        async with bounded():
            (await stage.session.move("node-2")).raise_unless_committed()
        await stage.oracles.hold(stage.session, stage.twin, 5, node_id="node-2")
        await stage.session.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_source_mover_that_dies_in_mid_chunk(held: tuple[LocalCluster, Hold]) -> None:
    """Fault 11: the world plays on in the memory that its engine still maps."""
    cluster, hold = held
    async with Client(cluster.placement_address) as client:
        stage = await make_stage(cluster, client)
        async with bounded():
            moving = await move_held(stage, hold, HALF)
            await cluster.kill("mover-node-1")
            record = await moving
        assert record.phase is MovePhase.ABORTED
        gone = frozenset({"mover-node-1"})
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-1", gone=gone)
        await cluster.restart("mover-node-1")
        await stage.session.close()
