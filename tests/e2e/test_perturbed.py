"""The negative control: were one bit of the state wrong, every following block would show it."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import make_stage
from tests.e2e.slots import flip_bit
from tests.oracles import bounded, play
from worldline.cli.cluster import LocalCluster
from worldline.sdk import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_one_bit_perturbed_before_resume_diverges_at_every_block(
    cluster: LocalCluster, client: Client
) -> None:
    stage = await make_stage(cluster, client)
    async with bounded():
        manifest = await stage.session.register_state()
        # An exponent bit (bit 14) of the newest cached key: it is in the half that is read next.
        leaf = next(each for each in manifest.layout.tensors if each.path == "kv_cache[0].k")
        last_element = leaf.offset_bytes + leaf.size_bytes - 2
        await flip_bit(
            cluster.services["mover-node-1"], stage.session.session_id, last_element + 1, bit=6
        )
        record = await stage.session.move("node-2")
        record.raise_unless_committed()
    blocks = await play(stage.session, 2, 8)
    for block in blocks:
        unmoved = stage.twin[block.index]
        assert block.index == unmoved.index
        assert block.state_digest != unmoved.state_digest
        assert block.frames_digest != unmoved.frames_digest
    await stage.session.close()
