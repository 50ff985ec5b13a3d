"""A node is drained under clients that play: nobody sees a gap, and everybody is elsewhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.conftest import FAULTY_MOVER, PATIENT, ROOT, SEED, Fault, make_twin
from tests.oracles import Oracles, bounded, play, script, signature, until
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.sdk import Client, Session
from worldline.sdk.block import Block
from worldline.sdk.rejected import Rejected
from worldline.verdict import RejectReason

#: Three nodes on a busy machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

WORLDLINE = str(Path(sys.executable).with_name("worldline"))
SLOTS = 3
BLOCKS = 40


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Fault:
    return Fault(tmp_path_factory.mktemp("fault"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def trio(fault: Fault) -> AsyncIterator[LocalCluster]:
    """Three nodes; node-1's mover misbehaves when armed."""
    node = NodeOptions(
        mover_entry=FAULTY_MOVER,
        mover_variables={"chunk_bytes": str(1 << 20)},
        env={"WORLDLINE_TEST_FAULT_DIR": str(fault.directory), "PYTHONPATH": str(ROOT)},
    )
    options = ClusterOptions(
        nodes=3, slots=SLOTS, slot_bytes=16 << 20, node_options={"node-1": node}
    )
    async with LocalCluster(options) as running:
        yield running


async def opened(client: Client, node: str) -> Session:
    """A world of two blocks."""
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node=node)
    await play(session, 0, 2)
    return session


async def command(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [WORLDLINE, *arguments, "--placement", cluster.placement_address],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


async def clear(cluster: LocalCluster, client: Client) -> None:
    """As a test finds it: nobody there, and every node open."""
    for info in await client.sessions():
        await (await client.session(info.session_id)).close()
    assert (await command(cluster, "undrain", "node-1")).returncode == 0


async def refused(client: Client, node: str) -> bool:
    """Whether the node takes no session."""
    try:
        await (await client.open("tiny", seed=1, contract=PATIENT, node=node)).close()
    except Rejected as error:
        return error.verdict.reason is RejectReason.NO_TARGET
    return False


async def test_a_node_is_drained_while_its_clients_play(trio: LocalCluster) -> None:
    async with Client(trio.placement_address) as client:
        twin = await make_twin(client, BLOCKS)
        sessions = [await opened(client, "node-1") for _ in range(3)]
        # Pools and paths are warm once somebody has been there and back.
        for node in ("node-2", "node-3"):
            for target in (node, "node-1"):
                (await sessions[2].move(target)).raise_unless_committed()
        oracles = await Oracles.observe(trio, client)
        seen: list[Block] = []
        halfway = asyncio.Event()

        async def watch() -> None:
            """As long as the drain lasts, and on from there."""
            actions = iter(script(BLOCKS - 2, 2))
            async for block in sessions[0].play(actions, digests=True, window=1):
                seen.append(block)
                if len(seen) == 3:
                    halfway.set()
                if not drained.done():
                    await asyncio.sleep(0.2)
                if len(seen) == BLOCKS // 2:  # the last are played where it has gone
                    await asyncio.shield(drained)

        drained: asyncio.Future[subprocess.CompletedProcess[str]]
        drained = asyncio.get_running_loop().create_future()
        async with bounded(250):
            watching = asyncio.ensure_future(watch())
            await halfway.wait()
            done = await command(trio, "drain", "node-1", "--watch", "--json")
            drained.set_result(done)
            await watching
        assert done.returncode == 0, done.stdout + done.stderr
        last = json.loads(done.stdout.splitlines()[-1])
        assert (last["state"], last["sessions_moved"], last["left"]) == ("drained", 3, [])

        assert [signature(one) for one in seen] == [signature(one) for one in twin[2:]]
        assert {one.epoch for one in seen} == {1, 2}, "it moved under its client"
        for session in sessions[1:]:
            assert (await session.refresh()).node_id in ("node-2", "node-3")
            await oracles.hold(session, twin, 2, attempts=None)
        assert await refused(client, "node-1")
        listed = await command(trio, "nodes")
        assert "alive, drained" in listed.stdout
        done = await command(trio, "undrain", "node-1")
        assert done.returncode == 0, done.stderr
        assert not await refused(client, "node-1")
        (await sessions[1].move("node-1")).raise_unless_committed()
        await clear(trio, client)


async def test_placement_is_killed_in_the_middle_and_the_drain_goes_on(
    trio: LocalCluster, fault: Fault
) -> None:
    async with Client(trio.placement_address) as client:
        twin = await make_twin(client, 8)
        sessions = [await opened(client, "node-1") for _ in range(3)]
        fault.arm("hold", 2)
        async with bounded(250):
            draining = asyncio.ensure_future(command(trio, "drain", "node-1"))
            await fault.held()
            await trio.kill("placement")
            await trio.restart("placement")
            # Whoever watches it is served by the new process, and never learns of the old one.
            done = await draining
        assert done.returncode == 0, done.stdout + done.stderr
        assert "node node-1 drained" in done.stdout
        assert await refused(client, "node-1")
        for session in sessions:
            assert (await session.refresh()).node_id in ("node-2", "node-3")
            assert [signature(one) for one in await play(session, 2, 3)] == [
                signature(one) for one in twin[2:5]
            ]
        await clear(trio, client)


async def test_a_full_fleet_is_said_with_reasons_and_the_worlds_play_on(
    trio: LocalCluster,
) -> None:
    async with Client(trio.placement_address) as client:
        twin = await make_twin(client, 6)
        here = [await opened(client, "node-1") for _ in range(2)]
        for node in ("node-2", "node-3"):
            for _ in range(SLOTS):
                await opened(client, node)

        async def known() -> list[str]:
            free = {one.node_id: one.slots_free for one in await client.nodes()}
            return [] if free["node-2"] == free["node-3"] == 0 else [str(free)]

        await until(known)
        async with bounded(250):
            done = await command(trio, "drain", "node-1", "--deadline", "2s")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "node node-1 incomplete" in done.stdout
        assert done.stdout.count("TARGET_FULL") == 2
        for session in here:
            assert session.session_id in done.stdout
            assert (await session.refresh()).node_id == "node-1"
            assert [signature(one) for one in await play(session, 2, 3)] == [
                signature(one) for one in twin[2:5]
            ]
        assert await refused(client, "node-1"), "closed until somebody undrains it"
        # Room is made while the next drain waits for it.
        async with bounded(250):
            draining = asyncio.ensure_future(command(trio, "drain", "node-1", "--json"))
            crowd = [one for one in await client.sessions() if one.node_id == "node-3"]
            for info in crowd[:2]:
                await (await client.session(info.session_id)).close()
            done = await draining
        assert done.returncode == 0, done.stdout + done.stderr
        (record,) = json.loads(done.stdout)
        assert record["sessions_moved"] == 2
        assert {(await one.refresh()).node_id for one in here} == {"node-3"}
        await clear(trio, client)
