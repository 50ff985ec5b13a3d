"""A live world moves and continues bit for bit: the happy paths, and moves that are given up."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import PATIENT, SEED, make_stage, make_twin
from tests.oracles import Oracles, bounded, play, script, signature
from worldline.cli.cluster import LocalCluster
from worldline.sdk import Client
from worldline.sdk.move_record import MovePhase

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_there_and_back(cluster: LocalCluster, client: Client) -> None:
    stage = await make_stage(cluster, client)
    async with bounded():
        record = await stage.session.move("node-2")
        assert record.phase is MovePhase.DONE
        assert record.source_digest == record.target_digest
    await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-2")
    async with bounded():
        (await stage.session.move("node-1")).raise_unless_committed()
    await stage.oracles.hold(stage.session, stage.twin, 5, node_id="node-1")
    assert stage.session.epoch == 3
    await stage.session.close()


async def test_a_stream_survives_moves_while_it_plays(
    cluster: LocalCluster, client: Client
) -> None:
    twin = await make_twin(client, 30)
    async with await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session:
        seen = []
        started, moved = asyncio.Event(), asyncio.Event()

        async def watch() -> None:
            async for block in session.play(script(30), digests=True, window=3):
                seen.append(block)
                started.set()
                if len(seen) == 10:  # the others come from where it has gone
                    await moved.wait()

        async with bounded(), asyncio.TaskGroup() as group:
            group.create_task(watch())
            await started.wait()
            for target in ("node-2", "node-1", "node-2"):
                (await session.move(target)).raise_unless_committed()
                moved.set()
        assert [signature(block) for block in seen] == [signature(block) for block in twin]
        assert len({block.epoch for block in seen}) > 1, "the stream ended before the first move"


async def test_the_six_verbs(cluster: LocalCluster, client: Client) -> None:
    stage = await make_stage(cluster, client)
    session = stage.session
    async with bounded():
        registered = await session.register_state()
        verdict = await session.admit("node-2")
        assert verdict.admitted
        assert verdict.numbers["t_migrate_ms"] < verdict.numbers["horizon_ms"]
        staged = await session.migrate()
        assert staged.digests == registered.digests
        assert await session.verify()
        committed = await session.commit()
    assert committed.epoch == registered.epoch + 1
    await stage.oracles.hold(session, stage.twin, 2, node_id="node-2")
    await session.close()


@pytest.mark.parametrize("verbs", ["admit", "admit migrate", "admit migrate verify"])
async def test_a_move_given_up_after_any_verb_changes_nothing(
    cluster: LocalCluster, client: Client, verbs: str
) -> None:
    stage = await make_stage(cluster, client)
    session = stage.session
    async with bounded():
        for verb in verbs.split():
            await (session.admit("node-2") if verb == "admit" else getattr(session, verb)())
        manifest = await session.rollback()
    assert manifest.epoch == 1
    await stage.oracles.hold(session, stage.twin, 2, node_id="node-1")
    await session.close()


async def test_fifty_moves_given_up_leave_nothing(cluster: LocalCluster, client: Client) -> None:
    stage = await make_stage(cluster, client)
    session = stage.session
    async with bounded(250):
        for _ in range(50):
            assert (await session.admit("node-2")).admitted
            await session.migrate()
            await session.rollback()
    await stage.oracles.hold(session, stage.twin, 2, attempts=50, node_id="node-1")
    (await session.move("node-2")).raise_unless_committed()
    await stage.oracles.hold(session, stage.twin, 5, node_id="node-2")
    await session.close()


async def test_two_worlds_cross(cluster: LocalCluster, client: Client) -> None:
    """Opposite moves at once: no duplex pair, so one of them may be rejected, never both stuck."""
    twin = await make_twin(client, 6)
    one = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    two = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-2")
    async with one, two:
        await play(one, 0, 2)
        await play(two, 0, 2)
        oracles = await Oracles.observe(cluster, client)
        async with bounded():
            records = await asyncio.gather(one.move("node-2"), two.move("node-1"))
        outcomes = sorted(record.phase.name for record in records)
        assert outcomes in (["DONE", "DONE"], ["DONE", "REJECTED"])
        await oracles.hold(one, twin, 2, attempts=2)
        await oracles.hold(two, twin, 2, attempts=0)
