"""A live session is inspected while it plays: what is seen is right, what plays is unchanged."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import PATIENT, SEED, make_twin
from tests.oracles import bounded, play, signature
from worldline.sdk import Client, Inspected
from worldline.sdk.block import Block
from worldline.sdk.session import Session
from worldline.state.boundary import Baseline
from worldline.state.update_rule import Regime, UpdateRule, regime_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Two that fill the window, and four that rewrite it.
BLOCKS = 6


async def watched(
    client: Client, session: Session, start: int, count: int
) -> tuple[Inspected, list[Block]]:
    """Blocks `start` to `start + count`, played from the first boundary on."""
    looked = asyncio.Event()

    async def played() -> list[Block]:
        await looked.wait()
        return await play(session, start, count)

    async with bounded(), asyncio.TaskGroup() as group:
        playing = group.create_task(played())
        inspected = await client.inspect(
            session.session_id,
            boundaries=count + 1,
            wait_s=120,
            granule_bytes=256,
            on_boundary=lambda _: looked.set(),
        )
    return inspected, playing.result()


async def test_a_session_is_inspected_where_it_plays(client: Client) -> None:
    twin = await make_twin(client, BLOCKS + 3)
    async with await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session:
        inspected, blocks = await watched(client, session, 0, BLOCKS)
        assert inspected.stopped is None
        inspection = inspected.inspection
        assert inspection.trace.baseline is Baseline.INITIAL_STATE
        assert inspection.classification.rule is UpdateRule.WINDOW_REWRITE
        assert [regime_of(step) for step in inspection.steps] == (
            [Regime.APPENDS] * 2 + [Regime.REWRITES] * 4
        )
        assert inspection.dirty_fraction == pytest.approx(0.70, abs=0.01)
        assert inspection.dirty_rate_bytes_per_s > 0

        async with bounded():
            (await session.move("node-2")).raise_unless_committed()
        moved, more = await watched(client, session, BLOCKS, 3)
        assert (moved.session.node_id, moved.epoch) == ("node-2", 2)
        assert moved.inspection.trace.baseline is Baseline.INITIAL_STATE
        assert moved.inspection.classification.rule is UpdateRule.WINDOW_REWRITE
        assert moved.inspection.never_written == inspection.never_written
    assert [signature(one) for one in blocks + more] == [signature(one) for one in twin]
