"""One wrong bit anywhere: nothing is installed, the source plays on, leaf and granule are named."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Fault, make_stage
from tests.e2e.slots import flip_bit
from tests.oracles import bounded
from worldline.cli.cluster import LocalCluster
from worldline.errors import IntegrityError
from worldline.sdk import Client
from worldline.sdk.move_record import MovePhase

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_bit_flipped_in_flight(faulty_cluster: LocalCluster, fault: Fault) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        fault.arm("flip")
        async with bounded():
            record = await stage.session.move("node-2")
        assert record.phase is MovePhase.ABORTED
        assert record.failure is not None
        assert record.failure.reason == "DIGEST_MISMATCH"
        assert record.failure.leaf in record.failure.message
        assert record.failure.leaf
        assert record.failure.granule == 0
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-1")
        async with bounded():
            (await stage.session.move("node-2")).raise_unless_committed()
        await stage.oracles.hold(stage.session, stage.twin, 5, node_id="node-2")
        await stage.session.close()


async def test_a_bit_flipped_in_the_shadow_slot(faulty_cluster: LocalCluster) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        async with bounded():
            await session.admit("node-2")
            staged = await session.migrate()
            leaf = staged.layout.tensors[5]
            mover = faulty_cluster.services["mover-node-2"]
            await flip_bit(mover, session.session_id, leaf.offset_bytes)
            assert not await session.verify()
            assert session.difference is not None
            assert session.difference.leaf == leaf.path
            assert session.difference.granule == leaf.offset_bytes >> 20
            with pytest.raises(IntegrityError) as caught:
                await session.commit()
        assert caught.value.leaf == leaf.path
        await stage.oracles.hold(session, stage.twin, 2, node_id="node-1")
        await session.close()


async def test_a_bit_flipped_after_a_verify_that_matched(faulty_cluster: LocalCluster) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        async with bounded():
            await session.admit("node-2")
            await session.migrate()
            assert await session.verify()
            await flip_bit(faulty_cluster.services["mover-node-2"], session.session_id, 4096)
            with pytest.raises(IntegrityError):
                await session.commit()
        await stage.oracles.hold(session, stage.twin, 2, node_id="node-1")
        await session.close()
