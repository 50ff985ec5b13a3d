"""Forks on GPUs, with real processes: branches are copied on the device, and move between two."""

from __future__ import annotations

from tests.gpu.test_engine import PAIR, PATIENT, SEED, running
from tests.oracles import play, signature
from worldline.cli.parts import ClusterOptions


async def test_branches_are_copies_on_the_device_and_move_to_another() -> None:
    options = ClusterOptions(slots=4, slot_bytes=64 << 20, devices=PAIR)
    async with running(options) as client:
        twin = await client.open("small", seed=SEED, contract=PATIENT, node="node-1")
        expected = [signature(block) for block in await play(twin, 0, 6)]
        await twin.close()
        parent = await client.open("small", seed=SEED, contract=PATIENT, node="node-1")
        await play(parent, 0, 2)
        (copy,) = await parent.fork(same_noise=True)
        (stays,) = await parent.fork(first_branch=4)
        (goes,) = await parent.fork(first_branch=4)
        apart = [signature(block) for block in await play(stays, 2, 4)]
        seen = [signature(block) for block in await play(goes, 2, 2)]
        (await goes.move("node-2")).raise_unless_committed()
        seen += [signature(block) for block in await play(goes, 4, 2)]
        assert seen == apart
        for one in (copy, parent):
            assert [signature(block) for block in await play(one, 2, 4)] == expected[2:]
        assert not {one[1] for one in apart} & {one[1] for one in expected}
        for one in (copy, stays, goes, parent):
            await one.close()
