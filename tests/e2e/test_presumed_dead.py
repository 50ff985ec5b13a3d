"""Fault 17: parties that are stopped in the middle of a move for longer than their leases.

Whoever was presumed dead commits nothing and generates nothing; the world is in one place and plays
on. Movers that are stopped in the middle of their bytes: `test_stalls`, `test_stalled_worlds`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import Stage, make_stage
from tests.e2e.hold import stopped, until_stopped
from tests.oracles import bounded, until
from worldline.cli.cluster import LocalCluster
from worldline.errors import WorldlineError
from worldline.sdk import Client
from worldline.sdk.move_record import MovePhase, MoveRecord

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

#: Twice what placement grants by default: who is stopped for so long has lost its lease.
PAUSE_S = 6.0
PATIENCE_S = 60.0


async def stage_bytes(cluster: LocalCluster, client: Client) -> Stage:
    """A world whose bytes are staged at node-2, and whose client has yet to ask for the commit."""
    stage = await make_stage(cluster, client)
    assert (await stage.session.admit("node-2")).admitted
    await stage.session.migrate()
    return stage


async def until_silent(client: Client, engine_id: str) -> None:
    """Placement has noticed: the engine's lease has run out."""

    async def complaints() -> list[str]:
        engines = [each for node in await client.nodes() for each in node.engines]
        return [f"{each.engine_id} is alive" for each in engines if each.engine_id == engine_id
                and each.alive]  # fmt: skip

    await until(complaints, PATIENCE_S)


async def last_move(client: Client, stage: Stage) -> MoveRecord:
    return (await client.moves(stage.session.session_id))[0]


async def test_a_target_engine_that_is_presumed_dead_gets_no_world(
    cluster: LocalCluster, client: Client
) -> None:
    """It is noticed by its lease, not by the deadline of what it was asked; it attaches nothing."""
    stage = await stage_bytes(cluster, client)
    victim = cluster.services["engine-node-2"]
    with stopped(victim):
        await until_stopped(victim)
        await until_silent(client, "node-2-cpu")
        async with bounded(PATIENCE_S):
            with pytest.raises(WorldlineError) as caught:
                await stage.session.commit()
    assert caught.value.reason == "PEER_SILENT"
    record = await last_move(client, stage)
    assert record.phase is MovePhase.ABORTED
    await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-1")
    await stage.session.close()


async def test_a_source_engine_that_is_presumed_dead_does_not_go_on(
    cluster: LocalCluster, client: Client
) -> None:
    """Its world is proven elsewhere: it commits without it, and the source finds out."""
    stage = await stage_bytes(cluster, client)
    victim = cluster.services["engine-node-1"]
    with stopped(victim):
        await until_stopped(victim)
        await until_silent(client, "node-1-cpu")
        async with bounded(PATIENCE_S):
            await stage.session.commit()
    assert (await last_move(client, stage)).committed
    await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-2")
    await stage.session.close()


async def test_a_placement_that_is_stopped_for_longer_than_its_leases(
    cluster: LocalCluster, client: Client
) -> None:
    """Nobody could renew meanwhile: engines stood still, and placement presumes nobody dead whom
    it did not hear itself. The move ends one way or the other, once.
    """
    stage = await stage_bytes(cluster, client)
    victim = cluster.services["placement"]
    with stopped(victim):
        await until_stopped(victim)
        committing = asyncio.ensure_future(stage.session.commit())
        await asyncio.sleep(PAUSE_S)  # the fault itself
    async with bounded():
        await asyncio.gather(committing, return_exceptions=True)
    await until(lambda: ended(client, stage), PATIENCE_S)
    record = await last_move(client, stage)
    assert record.committed or record.phase is MovePhase.ABORTED
    node_id = "node-2" if record.committed else "node-1"
    await stage.oracles.hold(stage.session, stage.twin, 2, node_id=node_id)
    assert (await client.session(stage.session.session_id)).info.state == "live"
    await stage.session.close()


async def ended(client: Client, stage: Stage) -> list[str]:
    record = await last_move(client, stage)
    return [] if record.phase.terminal else [f"the move is {record.phase.name}"]
