"""Somebody dies or goes away in the middle: the world is in exactly one place and plays on."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.e2e.conftest import Fault, make_stage
from tests.oracles import bounded, play, signature, until
from worldline.cli.cluster import LocalCluster
from worldline.errors import Fenced
from worldline.sdk import Client
from worldline.sdk.block import Block
from worldline.sdk.move_record import MovePhase
from worldline.sdk.session import Session

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("victim", ["engine-node-2", "mover-node-2"])
async def test_a_party_of_the_target_is_killed_mid_transfer(
    faulty_cluster: LocalCluster, fault: Fault, victim: str
) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        fault.arm("hold", 2)
        async with bounded():
            moving = asyncio.ensure_future(stage.session.move("node-2"))
            await fault.held()
            await faulty_cluster.kill(victim)
            record = await moving
        assert record.phase is MovePhase.ABORTED
        assert record.failure is not None
        assert record.failure.reason
        await stage.oracles.hold(
            stage.session, stage.twin, 2, node_id="node-1", gone=frozenset({victim})
        )
        await faulty_cluster.restart(victim)
        await stage.session.close()


async def test_the_source_engine_is_stopped_across_the_commit(
    faulty_cluster: LocalCluster,
) -> None:
    """It missed its detach, and finds out that the move is over when it runs again."""
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        async with bounded():
            assert (await session.admit("node-2")).admitted
            await session.migrate()
            faulty_cluster.signal("engine-node-1", signal.SIGSTOP)
            try:
                await session.commit()
            finally:
                faulty_cluster.signal("engine-node-1", signal.SIGCONT)
        await stage.oracles.hold(session, stage.twin, 2, node_id="node-2")
        await session.close()


async def test_the_client_goes_away_mid_move(faulty_cluster: LocalCluster, fault: Fault) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        fault.arm("hold", 2)
        async with bounded(), Client(faulty_cluster.placement_address) as leaving:
            session = await leaving.session(stage.session.session_id)
            moving = asyncio.ensure_future(session.move("node-2"))
            await fault.held()
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        # The transfer is stuck until its lease ends; then the move ends by itself, typed.
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-1")
        record = (await client.moves(stage.session.session_id))[0]
        assert record.phase is MovePhase.ABORTED
        await stage.session.close()


async def test_the_client_goes_away_and_the_move_goes_on(faulty_cluster: LocalCluster) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        async with bounded(), Client(faulty_cluster.placement_address) as leaving:
            session = await leaving.session(stage.session.session_id)
            begun = asyncio.Event()
            moving = asyncio.ensure_future(
                session.move("node-2", on_progress=lambda _progress: begun.set())
            )
            await begun.wait()
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-2")
        await stage.session.close()


async def test_a_mover_is_killed_under_a_world_that_plays(faulty_cluster: LocalCluster) -> None:
    """It plays on where no mover reaches; a branch with its noise is the way out, and moves."""
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client, blocks=12)
        session = stage.session
        await faulty_cluster.kill("mover-node-1")
        await faulty_cluster.restart("mover-node-1")
        await stranded(session)
        same_as(stage.twin, await play(session, 2, 2))
        async with bounded():
            with pytest.raises(Fenced) as caught:
                await session.suspend()
        assert caught.value.reason == "MOVER_REPLACED"
        async with bounded():
            (branch,) = await session.fork(same_noise=True)
        await session.close()
        async with bounded():
            (await branch.move("node-2")).raise_unless_committed()
        same_as(stage.twin, await play(branch, 4, 3))
        await branch.close()


async def stranded(session: Session) -> None:
    """Until moves of the world fail for that reason: first its node has to be back."""

    async def complaints() -> list[str]:
        record = await session.move("node-2")
        failure = record.failure
        if failure is not None and failure.reason == "MOVER_REPLACED":
            assert "--same-noise" in failure.message
            return []
        return [f"{record.phase.name}: {record.verdict} {failure}"]

    async with bounded():
        await until(complaints)


def same_as(twin: list[Block], played: list[Block]) -> None:
    for block in played:
        assert signature(block) == signature(twin[block.index])
