"""Single wrong bits in a live world's staged copy: each is caught by the verbs, and named.

The stages below the verbs, and many more bits: `tests.unit.mover.test_faults_battery`.
"""

from __future__ import annotations

import pytest

from tests.e2e.conftest import make_stage
from tests.e2e.slots import flip_bit
from tests.flips import Flip, flips
from tests.oracles import bounded, until
from worldline.cli.cluster import LocalCluster
from worldline.errors import IntegrityError
from worldline.sdk import Client
from worldline.sdk.session import Session

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def stage_and_flip(
    cluster: LocalCluster, session: Session, flip: Flip, *, is_verified: bool
) -> tuple[str | None, int | None]:
    """Stage the world at node-2, change a bit there, before or after a verify that matches.

    Returns the leaf and the granule that the commit was refused for.
    """
    await session.admit("node-2")
    await session.migrate()
    if is_verified:
        assert await session.verify()
    await flip_bit(
        cluster.services["mover-node-2"], session.session_id, flip.offset_bytes, flip.bit
    )
    if not is_verified:
        assert not await session.verify()
        assert session.difference is not None
        assert (session.difference.leaf, session.difference.granule) == flip.found
    with pytest.raises(IntegrityError) as caught:
        await session.commit()
    return caught.value.leaf, caught.value.granule


async def test_no_bit_in_a_staged_world_is_missed(cluster: LocalCluster, client: Client) -> None:
    """Before a verify, and after one that matched: the commit reads back what it installs."""
    stage = await make_stage(cluster, client)
    session = stage.session
    strata = flips((await session.register_state()).layout, seed=3)[::3]
    misses = []
    async with bounded(250):
        for number, flip in enumerate(strata):
            found = await stage_and_flip(cluster, session, flip, is_verified=number % 2 == 1)
            await until(stage.oracles._nothing_in_flight)
            record = (await client.moves(session.session_id))[0]
            assert record.failure is not None
            if found != flip.found or (record.failure.leaf or None) != flip.leaf:
                misses.append(f"{flip} was taken for {found}, and on record {record.failure}")
    assert misses == []
    await stage.oracles.hold(session, stage.twin, 2, attempts=len(strata), node_id="node-1")
    async with bounded():
        (await session.move("node-2")).raise_unless_committed()
    await stage.oracles.hold(session, stage.twin, 5, node_id="node-2")
    await session.close()
