"""A model of another package, on the engines that have it and on no other."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.conftest import PATIENT, ROOT
from tests.oracles import bounded, play, signature
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.errors import InvalidInput, Unavailable
from worldline.sdk import Client
from worldline.sdk.rejected import Rejected
from worldline.verdict import RejectReason

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "my_world:MyWorld"
SEED = 7
ENV = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "examples")))}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[Client]:
    """Three nodes, the last of which has built-in presets only."""
    options = ClusterOptions(
        nodes=3,
        slots=3,
        slot_bytes=16 << 20,
        models=(MODEL,),
        env=ENV,
        node_options={"node-3": NodeOptions(engine_variables={"models": ""})},
    )
    async with (
        LocalCluster(options) as running,
        Client(running.placement_address) as connected,
    ):
        yield connected


async def test_it_opens_where_it_is_served_and_moves_bit_for_bit(client: Client) -> None:
    async with bounded():
        session = await client.open("my-world", seed=SEED, contract=PATIENT)
        (placed,) = await client.sessions()
    assert placed.session_id == session.session_id
    assert placed.node_id in ("node-1", "node-2")
    there = "node-2" if placed.node_id == "node-1" else "node-1"
    blocks = await play(session, 0, 2)
    async with bounded():
        record = await session.move(there)
    record.raise_unless_committed()
    assert record.source_digest == record.target_digest
    blocks += await play(session, 2, 3)
    assert {block.epoch for block in blocks} == {1, 2}
    assert blocks[0].frames.shape == (4, 32, 32, 3)
    async with await client.open("my-world", seed=SEED, contract=PATIENT) as stayed:
        twin = await play(stayed, 0, 5)
    assert [signature(block) for block in blocks] == [signature(block) for block in twin]
    async with bounded():
        with pytest.raises(Rejected) as other_code:
            (await session.move("node-3")).raise_unless_committed()
        assert other_code.value.verdict.reason is RejectReason.FINGERPRINT_MISMATCH
        assert "same --models" in other_code.value.verdict.explanation
        await session.close()


async def test_an_engine_without_it_is_not_asked(client: Client) -> None:
    async with bounded():
        with pytest.raises(Rejected) as refused:
            await client.open("my-world", seed=SEED, contract=PATIENT, node="node-3")
        assert refused.value.verdict.reason is RejectReason.NO_TARGET
        assert "does not serve my-world" in refused.value.verdict.explanation
        with pytest.raises(InvalidInput) as unknown:
            await client.open("their-world", seed=SEED, contract=PATIENT)
    assert unknown.value.field == "world.preset"
    assert "my-world" in unknown.value.message


async def test_an_engine_that_cannot_load_its_model_says_so() -> None:
    """The cluster does not come up, and the reason is in what it says."""
    options = ClusterOptions(nodes=1, slot_bytes=16 << 20, models=("my_world:Nobody",), env=ENV)
    with pytest.raises(Unavailable) as failed:
        async with LocalCluster(options):
            pass
    assert "MODEL_ATTRIBUTE_MISSING" in failed.value.message
    assert "my_world" in failed.value.message
