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
from worldline.sdk import Client
from worldline.sdk.block import Block
from worldline.sdk.session import Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEFORE, AFTER, BULK_BLOCKS = 8, 6, 4
BULK = Contract(ServiceClass.C3_BULK, horizon_ms=60_000)
REPLAY = Contract(ServiceClass.C4_REPLAY, horizon_ms=60_000)


async def measured(client: Client) -> ProfileRow:
    """The row of node-1, which a session with a period makes admission ask for."""
    unhurried = replace(PATIENT, period_ms=60_000.0)
    async with await client.open("tiny", seed=SEED, contract=unhurried, node="node-1"):
        pass
    rows: list[ProfileRow] = []

    async def unheard() -> list[str]:
        for node in await client.nodes():
            for engine in node.engines:
                if node.node_id == "node-1":
                    rows[:] = [row for row in engine.rows if row.shape.preset == "tiny"]
        return [] if rows else ["node-1 has told no row of tiny"]

    await until(unheard)
    return rows[0]


async def played(session: Session, start: int, count: int) -> list[Block]:
    blocks = session.play(script(count, start), digests=True)
    return [block async for block in blocks]


async def test_a_floor_a_move_and_a_replay_beside_bulk(
    cluster: LocalCluster, client: Client
) -> None:
    row = await measured(client)
    # Room for a block at the floor, as admission reckons, and not for one of all steps.
    period_ms = 1.3 * row.charge.block_ms(1)
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
