"""Contracts are kept by schedule: a period and a floor beside bulk, moved, and replayed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.e2e.conftest import PATIENT, SEED
from tests.oracles import bounded, script, until
from worldline.admissibility.profile_row import ProfileRow
from worldline.cli.cluster import LocalCluster
from worldline.contract import Contract, ServiceClass
from worldline.sdk import BlockCounts, Client
from worldline.sdk.block import Block
from worldline.sdk.session import Session
from worldline.verdict import RejectReason

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEFORE, AFTER, BULK_BLOCKS = 8, 6, 4
BULK = Contract(ServiceClass.C3_BULK, horizon_ms=60_000)
REPLAY = Contract(ServiceClass.C4_REPLAY, horizon_ms=60_000)


async def measured(client: Client, node_id: str) -> ProfileRow:
    """The row of a node, which a session with a period makes admission ask for."""
    unhurried = replace(PATIENT, period_ms=60_000.0)
    async with await client.open("tiny", seed=SEED, contract=unhurried, node=node_id):
        pass
    rows: list[ProfileRow] = []

    async def unheard() -> list[str]:
        for node in await client.nodes():
            for engine in node.engines:
                if node.node_id == node_id:
                    rows[:] = [row for row in engine.rows if row.shape.preset == "tiny"]
        return [] if rows else [f"{node_id} has told no row of tiny"]

    await until(unheard)
    return rows[0]


async def counted(client: Client, session_id: str, blocks: list[Block]) -> list[str]:
    """Nothing once placement has heard of these, which are the session's last stay: of those before
    it may have missed the latest.
    """
    (info,) = [one for one in await client.sessions() if one.session_id == session_id]
    (node,) = [one for one in await client.nodes() if one.node_id == info.node_id]
    (engine,) = node.engines
    least = BlockCounts(
        blocks=len(blocks),
        degraded_blocks=sum(block.degraded for block in blocks),
        releases_skipped=sum(block.releases_skipped for block in blocks),
        missed_periods=sum(block.late_ms > 0 for block in blocks),
    )
    return [
        f"of {name} placement has heard of {heard}, not yet of {least}"
        for heard in (info.block_counts or BlockCounts(), engine.block_counts)
        for name in ("blocks", "degraded_blocks", "releases_skipped", "missed_periods")
        if getattr(heard, name) < getattr(least, name)
    ]


async def played(session: Session, start: int, count: int) -> list[Block]:
    blocks = session.play(script(count, start), digests=True)
    return [block async for block in blocks]


async def test_a_floor_a_move_and_a_replay_beside_bulk(
    cluster: LocalCluster, client: Client
) -> None:
    rows = [await measured(client, node_id) for node_id in ("node-1", "node-2")]
    # Room for a block at the floor, as admission reckons at both, and not for one of all steps.
    period_ms = 1.1 * max(row.charge.block_ms(1) for row in rows)
    paced = replace(PATIENT, period_ms=period_ms, quality_floor_steps=1)
    async with (
        bounded(),
        await client.open("tiny", seed=SEED, contract=paced, node="node-1") as session,
        await client.open("tiny", seed=SEED, contract=BULK, node="node-1") as bulk,
    ):
        filling = asyncio.create_task(played(bulk, 0, BULK_BLOCKS))
        blocks = await played(session, 0, BEFORE)
        (await session.move("node-2")).raise_unless_committed()
        blocks += await played(session, BEFORE, AFTER)
        filled = await filling
        await until(lambda: counted(client, session.session_id, blocks[BEFORE:]))
    assert [block.index for block in blocks] == list(range(BEFORE + AFTER))
    assert [block.index for block in filled] == list(range(BULK_BLOCKS))
    assert {block.steps for block in filled} == {3}
    assert blocks[0].steps == blocks[BEFORE].steps == 3, "first in its place: measured, whole"
    assert any(block.degraded for block in blocks[:BEFORE])
    for block in blocks:
        assert block.steps_full == 3
        assert block.degraded == (block.steps < 3) == bool(block.degraded_because)
    async with bounded(), await client.open("tiny", seed=SEED, contract=REPLAY) as twin:
        actions = [
            replace(action, steps=block.steps)
            for action, block in zip(script(len(blocks)), blocks, strict=True)
        ]
        again = [block async for block in twin.play(actions, digests=True)]
    for block, other in zip(blocks, again, strict=True):
        assert (block.state_digest, block.frames_digest, block.steps) == (
            other.state_digest,
            other.frames_digest,
            other.steps,
        )


async def test_a_move_is_held_against_the_periods_of_its_target(
    cluster: LocalCluster, client: Client
) -> None:
    rows = [await measured(client, node_id) for node_id in ("node-1", "node-2")]
    here, there = (row.charge.block_ms(row.denoising_steps) for row in rows)
    # Each has room alone; the two of them want more of node-2 than it has.
    paced = replace(PATIENT, period_ms=1.5 * max(here, there))
    settled = replace(PATIENT, period_ms=1.2 * there)
    async with (
        bounded(),
        await client.open("tiny", seed=SEED, contract=paced, node="node-1") as session,
        await client.open("tiny", seed=SEED, contract=settled, node="node-2") as resident,
    ):
        blocks = await played(session, 0, 2)
        refused = await session.move("node-2")
        assert refused.outcome == "rejected"
        assert refused.verdict is not None
        assert refused.verdict.reason is RejectReason.DEVICE_OVERCOMMITTED
        assert "make room there" in refused.verdict.explanation
        assert refused.verdict.numbers["utilization_wanted"] > 0.95
        await resident.close()
        (await session.move("node-2")).raise_unless_committed()
        blocks += await played(session, 2, 2)
    assert [block.index for block in blocks] == [0, 1, 2, 3]
