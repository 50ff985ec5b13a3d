"""Forks of live worlds over real processes: branches move, are admitted, and leave nothing."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.e2e.conftest import PATIENT, SEED, SLOTS, make_stage, make_twin
from tests.oracles import BOUND_S, bounded, play, script, signature, until
from worldline.cli.cluster import LocalCluster
from worldline.errors import NotFound, WorldlineError
from worldline.sdk import Client, Rejected, Session

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def opened(client: Client) -> Session:
    """A world of two blocks on node-1."""
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    await play(session, 0, 2)
    return session


async def branches(client: Client, session: Session, state: str, count: int) -> list[str]:
    """Nothing where the session has that many branches, all in that state."""
    found = [
        one.state
        for one in await client.sessions()
        if one.forked_from is not None and one.forked_from.session_id == session.session_id
    ]
    return [] if found == [state] * count else [f"branches are {found}, not {count} {state}"]


async def free_slots(client: Client, expected: int) -> list[str]:
    (node,) = [one for one in await client.nodes() if one.node_id == "node-1"]
    live = sum(device.slots_live for device in node.devices)
    if (node.slots_free, SLOTS - live) == (expected, expected):
        return []
    return [f"node-1: {node.slots_free} of {SLOTS} slots free, {live} live; not {expected} free"]


async def test_a_branch_moves_and_goes_on_as_its_twin_that_stayed(
    cluster: LocalCluster, client: Client
) -> None:
    """The same number of the same state is the same branch; no other sees what it writes."""
    stage = await make_stage(cluster, client, blocks=8)
    async with bounded():
        (stays,) = await stage.session.fork(first_branch=4)
        (goes,) = await stage.session.fork(first_branch=4)
    assert goes.info.forked_from is not None
    assert goes.info.forked_from.block_index == 2
    twin = [*stage.twin[:2], *await play(stays, 2, 6)]
    await stays.close()
    async with bounded():
        (await goes.move("node-2")).raise_unless_committed()
    parent = await play(stage.session, 2, 6)
    assert [signature(one) for one in parent] == [signature(one) for one in stage.twin[2:]]
    for one, other in zip(parent, twin[2:], strict=True):
        assert one.state_digest != other.state_digest
        assert one.frames_digest != other.frames_digest
    await stage.session.close()
    await stage.oracles.hold(goes, twin, 2, node_id="node-2")
    await goes.close()


async def test_no_room_leaves_nothing_and_a_planner_adopts_a_branch(
    cluster: LocalCluster, client: Client
) -> None:
    stage = await make_stage(cluster, client, blocks=8)
    session = stage.session
    async with bounded():
        with pytest.raises(Rejected) as caught:
            await session.fork(SLOTS)
    verdict = caught.value.verdict
    assert verdict.label == "DEVICE_FULL"
    assert verdict.numbers["slots_total"] == SLOTS
    assert verdict.numbers["branches"] == SLOTS
    assert verdict.numbers["branches_with_room"] == SLOTS - 1
    assert await branches(client, session, "live", 0) == []
    await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
    async with bounded(), await session.fan_out(2) as fan:
        ahead, other = await fan.play([script(2, 5), script(2, 9)], digests=True)
        assert [one.index for one in (*ahead, *other)] == [5, 6, 5, 6]
        assert ahead[1].state_digest != other[1].state_digest
        adopted = await fan.adopt(fan.branches[1])
    with pytest.raises(NotFound):
        await session.refresh()
    assert [one.index for one in await play(adopted, 7, 1)] == [7]
    await until(lambda: stage.oracles._leaks(frozenset()))
    await adopted.close()


async def test_placement_is_killed_in_mid_fork(faulty_cluster: LocalCluster) -> None:
    """What the first process left half done is undone; who asked has it from the second."""
    async with Client(faulty_cluster.placement_address) as client:
        twin = await make_twin(client, 4)
        session = await opened(client)
        faulty_cluster.signal("mover-node-1", signal.SIGSTOP)
        # One: the slot of the first try may be taken until the second has its own.
        forking = asyncio.ensure_future(session.fork(same_noise=True))
        try:
            await until(lambda: branches(client, session, "opening", 1))
            await faulty_cluster.kill("placement")
        finally:
            faulty_cluster.signal("mover-node-1", signal.SIGCONT)
        await faulty_cluster.restart("placement")
        async with bounded():
            (branch,) = await forking
        await until(lambda: branches(client, session, "live", 1))
        for one in (session, branch):
            assert [signature(block) for block in await play(one, 2, 2)] == [
                signature(block) for block in twin[2:]
            ]
            await one.close()
        await until(lambda: free_slots(client, SLOTS), BOUND_S)


async def test_the_engine_is_killed_in_mid_fork(faulty_cluster: LocalCluster) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        session = await opened(client)
        faulty_cluster.signal("mover-node-1", signal.SIGSTOP)
        forking = asyncio.ensure_future(session.fork(2))
        try:
            await until(lambda: branches(client, session, "opening", 2))
            await faulty_cluster.kill("engine-node-1")
        finally:
            faulty_cluster.signal("mover-node-1", signal.SIGCONT)
        await faulty_cluster.restart("engine-node-1")
        async with bounded():
            with pytest.raises(WorldlineError):
                await forking
        await until(lambda: branches(client, session, "closed", 0))
        assert (await session.refresh()).state == "lost"
        await session.close()
        await until(lambda: free_slots(client, SLOTS), BOUND_S)
