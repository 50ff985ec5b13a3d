"""Suspend and resume of live worlds, over real processes: nothing but time passes between."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PATIENT, SEED, SLOTS, Fault, Stage, make_stage, make_twin
from tests.e2e.slots import slot_file
from tests.oracles import bounded, play, script, signature, until
from worldline.cli.cluster import LocalCluster
from worldline.cli.process import ServiceProcess
from worldline.errors import Conflict, IntegrityError, NotFound, WorldlineError
from worldline.park import SuspensionPhase
from worldline.sdk import Client, ParkKind
from worldline.sdk.block import Block
from worldline.sdk.session import Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORLDLINE = str(Path(sys.executable).with_name("worldline"))
KINDS = pytest.mark.parametrize("kind", list(ParkKind), ids=lambda kind: kind.name.lower())


async def opened(client: Client) -> Session:
    """A world of two blocks on node-1."""
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    await play(session, 0, 2)
    return session


async def free_slots(client: Client, expected: int, node_id: str = "node-1") -> None:
    """Wait until placement counts so many slots free: a node's report may be a beat behind."""

    async def off() -> list[str]:
        (node,) = [one for one in await client.nodes() if one.node_id == node_id]
        if node.slots_free == expected:
            return []
        return [f"{node_id} has {node.slots_free} free slots, not {expected}"]

    await until(off)


def parked_folder(cluster: LocalCluster, node_id: str = "node-1") -> Path:
    """The one parked file of a node."""
    (folder,) = (cluster.path / "run" / node_id / "parked" / node_id).iterdir()
    return folder


@KINDS
async def test_out_and_back_twice_and_then_a_move(
    cluster: LocalCluster, client: Client, kind: ParkKind
) -> None:
    stage = await make_stage(cluster, client)
    session = stage.session
    for turn in range(2):
        async with bounded():
            await free_slots(client, SLOTS - 1)
            record = await session.suspend(kind)
            assert record is not None
            assert record.phase is SuspensionPhase.DONE
            assert session.info.state == "suspended"
            assert session.info.parked is kind
            assert session.info.slot is None
            await free_slots(client, SLOTS)
            back = await session.resume()
        assert back is not None
        assert back.digest == record.digest != 0
        assert back.copied_bytes == record.copied_bytes == session.info.state_bytes
        assert session.info.parked is None
        assert session.epoch == 2 + turn
        await stage.oracles.hold(
            session, stage.twin, 2 + 3 * turn, attempts=0, node_id="node-1", moved=False
        )
    async with bounded():
        (await session.move("node-2")).raise_unless_committed()
    await stage.oracles.hold(session, stage.twin, 8, node_id="node-2")
    await session.close()


@KINDS
async def test_a_stream_ends_with_a_word_and_goes_on_where_it_ended(
    cluster: LocalCluster, client: Client, kind: ParkKind
) -> None:
    """Actions that were sent and not answered are not lost and do not count twice."""
    twin = await make_twin(client, 30)
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    seen: list[Block] = []
    actions = iter(script(30))
    started, suspended = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        async for block in session.play(actions, digests=True, window=4):
            seen.append(block)
            started.set()
            if len(seen) == 10:  # the last are not played before it is suspended
                await suspended.wait()

    async with bounded():
        watching = asyncio.ensure_future(watch())
        await started.wait()
        await session.suspend(kind)
        suspended.set()
        with pytest.raises(Conflict) as caught:
            await watching
    assert caught.value.reason == "SESSION_SUSPENDED"
    assert "resume" in caught.value.message
    assert 0 < len(seen) < 30, "it was suspended in the middle"
    with pytest.raises(Conflict) as caught:
        await play(session, len(seen), 1)
    assert caught.value.reason == "SESSION_SUSPENDED"
    async with bounded():
        await session.resume()
        await watch()
    assert [signature(block) for block in seen] == [signature(block) for block in twin]
    assert {block.epoch for block in seen} == {1, 2}
    await session.close()


async def test_another_client_finds_it_suspended_and_resumes_it(
    cluster: LocalCluster, client: Client
) -> None:
    twin = await make_twin(client, 5)
    session = await opened(client)
    await session.suspend()
    async with bounded(), Client(cluster.placement_address) as other:
        listed = {one.session_id: one for one in await other.sessions()}
        assert listed[session.session_id].state == "suspended"
        assert listed[session.session_id].engine_address == ""
        theirs = await other.session(session.session_id)
        with pytest.raises(Conflict) as caught:
            async for _ in theirs.play(script(1, 2)):
                pass
        assert caught.value.reason == "SESSION_SUSPENDED"
        assert await theirs.suspend() is None
        await theirs.resume()
        assert await theirs.resume() is None
        blocks = [block async for block in theirs.play(script(3, 2), digests=True)]
    assert [signature(block) for block in blocks] == [signature(block) for block in twin[2:]]
    await session.close()


@KINDS
async def test_a_closed_session_leaves_no_copy(
    cluster: LocalCluster, client: Client, kind: ParkKind
) -> None:
    stage = await make_stage(cluster, client)
    await stage.session.suspend(kind)
    await stage.session.close()
    with pytest.raises(NotFound):
        await stage.session.refresh()
    await until(lambda: stage.oracles._leaks(frozenset()))


# --- one wrong bit -----------------------------------------------------------------------------


async def test_a_bit_flipped_in_the_parked_memory(cluster: LocalCluster, client: Client) -> None:
    stage = await make_stage(cluster, client)
    session, mover = stage.session, cluster.services["mover-node-1"]
    layout = (await session.register_state()).layout
    # Bytes by which the copy is found in the mover's memory.
    leaf = max(layout.tensors, key=lambda one: one.size_bytes)
    with (await slot_file(mover, session.session_id)).open("rb") as memory:
        memory.seek(leaf.offset_bytes)
        needle = memory.read(256)
    assert len(set(needle)) > 16, "these bytes could be anywhere"
    await session.suspend(ParkKind.MEMORY)
    assert flip_where(mover, needle), "the parked copy was not found"
    async with bounded():
        with pytest.raises(IntegrityError) as caught:
            await session.resume()
    assert caught.value.leaf == leaf.path
    assert caught.value.granule == leaf.offset_bytes >> 20
    assert (await session.refresh()).state == "suspended"
    assert flip_where(mover, bytes([needle[0] ^ 16]) + needle[1:])
    async with bounded():
        await session.resume()
    await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
    await session.close()


def flip_where(mover: ServiceProcess, needle: bytes) -> int:
    """Change a bit of every copy of `needle` in the mover's private anonymous memory."""
    found = 0
    maps = Path(f"/proc/{mover.pid}/maps").read_text()
    with Path(f"/proc/{mover.pid}/mem").open("r+b", buffering=0) as memory:
        for start, end in re.findall(
            r"^(\w+)-(\w+) rw-[ps] \w+ 00:\w+ \d+ *(?:/dev/zero.*)?$", maps, re.M
        ):
            low, high = int(start, 16), int(end, 16)
            try:
                memory.seek(low)
                data = memory.read(high - low)
            except (OSError, ValueError):
                continue
            for match in re.finditer(re.escape(needle), data):
                memory.seek(low + match.start())
                memory.write(bytes([needle[0] ^ 16]))
                found += 1
    return found


async def test_a_bit_flipped_in_the_parked_file(cluster: LocalCluster, client: Client) -> None:
    stage = await make_stage(cluster, client)
    session = stage.session
    leaf = (await session.register_state()).layout.tensors[5]
    await session.suspend(ParkKind.FILE)
    state = parked_folder(cluster) / "state"
    flip_file(state, leaf.offset_bytes)
    async with bounded():
        with pytest.raises(IntegrityError) as caught:
            await session.resume()
    assert (caught.value.leaf, caught.value.granule) == (leaf.path, leaf.offset_bytes >> 20)
    assert (await session.refresh()).state == "suspended"
    assert state.exists(), "kept for inspection"
    flip_file(state, leaf.offset_bytes)
    async with bounded():
        await session.resume()
    await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
    await session.close()


def flip_file(path: Path, offset_bytes: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(offset_bytes)
        byte = file.read(1)[0]
        file.seek(offset_bytes)
        file.write(bytes([byte ^ 16]))


# --- moves, deaths, restarts -------------------------------------------------------------------


async def test_no_suspend_in_a_move_and_no_move_in_a_suspend(
    faulty_cluster: LocalCluster, fault: Fault
) -> None:
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        fault.arm("hold", 2)
        async with bounded():
            moving = asyncio.ensure_future(session.move("node-2"))
            await fault.held()
            with pytest.raises(Conflict) as caught:
                await session.suspend()
            assert caught.value.reason == "MOVE_IN_PROGRESS"
            await moving  # its lease ends it
            faulty_cluster.signal("mover-node-1", signal.SIGSTOP)
            try:
                suspending = asyncio.ensure_future(session.suspend())
                await until(lambda: stands(session, "suspending"))
                with pytest.raises(WorldlineError) as refused:
                    await session.move("node-2")
                assert refused.value.reason == "SESSION_SUSPENDING"
            finally:
                faulty_cluster.signal("mover-node-1", signal.SIGCONT)
            await suspending
            with pytest.raises(Conflict) as caught:
                await session.move("node-2")
            assert caught.value.reason == "SESSION_SUSPENDED"
            await session.resume()
        await stage.oracles.hold(session, stage.twin, 2, node_id="node-1")
        await session.close()


async def stands(session: Session, state: str) -> list[str]:
    found = (await session.refresh()).state
    return [] if found == state else [f"the session is {found}, not {state}"]


async def frozen(stage: Stage) -> list[str]:
    """Nothing where the engine of the session has frozen its world."""
    phases = [
        world.phase
        for answer in (await stage.oracles._engines(frozenset())).values()
        for world in answer.worlds
        if world.session_id == stage.session.session_id
    ]
    return [] if phases == ["frozen"] else [f"the world is {phases}"]


@KINDS
async def test_the_mover_is_killed_and_comes_back(
    faulty_cluster: LocalCluster, kind: ParkKind
) -> None:
    """A file outlives it; memory does not, and who asks is told so."""
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        await session.suspend(kind)
        await faulty_cluster.kill("mover-node-1")
        await faulty_cluster.restart("mover-node-1")
        if kind is ParkKind.MEMORY:
            await until(lambda: stands(session, "lost"))
            with pytest.raises(Conflict) as caught:
                await session.resume()
            assert caught.value.reason == "SESSION_LOST"
            await session.close()
            return
        async with bounded():
            await session.resume()
        await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
        (await session.move("node-2")).raise_unless_committed()
        await stage.oracles.hold(session, stage.twin, 5, node_id="node-2")
        await session.close()


async def test_the_engine_is_killed_while_the_world_is_away(faulty_cluster: LocalCluster) -> None:
    """What is suspended is nobody's: another process of the engine takes it up."""
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        await session.suspend(ParkKind.MEMORY)
        await faulty_cluster.kill("engine-node-1")
        await faulty_cluster.restart("engine-node-1")
        async with bounded():
            await session.resume()
        await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
        await session.close()


async def test_placement_is_killed_in_mid_suspend(faulty_cluster: LocalCluster) -> None:
    """Before the record it is undone, without an operator: the world plays on."""
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        faulty_cluster.signal("mover-node-1", signal.SIGSTOP)
        suspending = asyncio.ensure_future(session.suspend())
        try:
            await until(lambda: stands(session, "suspending"))
            await until(lambda: frozen(stage))  # and the copy is asked for
            await faulty_cluster.kill("placement")
        finally:
            faulty_cluster.signal("mover-node-1", signal.SIGCONT)
        await faulty_cluster.restart("placement")
        with pytest.raises(WorldlineError):
            await suspending
        await until(lambda: stands(session, "live"))
        await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
        async with bounded():
            await session.suspend()
            await session.resume()
        await stage.oracles.hold(session, stage.twin, 5, attempts=0, node_id="node-1", moved=False)
        await session.close()


async def test_the_engine_is_stopped_across_the_record(faulty_cluster: LocalCluster) -> None:
    """It misses its detach, is given up, and lets go when it runs again; nobody runs meanwhile."""
    async with Client(faulty_cluster.placement_address) as client:
        stage = await make_stage(faulty_cluster, client)
        session = stage.session
        faulty_cluster.signal("mover-node-1", signal.SIGSTOP)
        suspending = asyncio.ensure_future(session.suspend())
        try:
            await until(lambda: stands(session, "suspending"))
            await until(lambda: frozen(stage))
            faulty_cluster.signal("engine-node-1", signal.SIGSTOP)
        finally:
            faulty_cluster.signal("mover-node-1", signal.SIGCONT)
        try:
            async with bounded():
                await suspending
        finally:
            faulty_cluster.signal("engine-node-1", signal.SIGCONT)
        assert session.info.state == "suspended"

        async def away() -> list[str]:
            answers = await stage.oracles._engines(frozenset())
            return [
                f"{name} still has the world, {world.phase}"
                for name, answer in answers.items()
                for world in answer.worlds
                if world.session_id == session.session_id
            ]

        await until(away)
        async with bounded():
            await session.resume()
        await stage.oracles.hold(session, stage.twin, 2, attempts=0, node_id="node-1", moved=False)
        await session.close()


# --- the command line --------------------------------------------------------------------------


async def test_the_commands(cluster: LocalCluster, client: Client) -> None:
    twin = await make_twin(client, 4)
    session = await opened(client)
    at = ("--placement", cluster.placement_address)

    async def worldline(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [WORLDLINE, *arguments, *at]
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
        )

    done = await worldline("suspend", session.session_id, "--to", "file")
    assert done.returncode == 0, done.stderr
    assert "suspended" in done.stdout
    assert "a file" in done.stdout
    assert "park" in done.stdout
    done = await worldline("suspend", session.session_id)
    assert done.returncode == 0
    assert "already" in done.stdout
    done = await worldline("sessions")
    assert "suspended (file)" in done.stdout
    done = await worldline("move", session.session_id, "node-2")
    assert done.returncode == 1
    assert "SESSION_SUSPENDED" in done.stderr
    done = await worldline("play", session.session_id, "--blocks", "1")
    assert done.returncode == 1
    assert "worldline resume" in done.stderr
    done = await worldline("resume", session.session_id, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["session"]["state"] == "live"
    assert answer["suspension"]["kind"] == "FILE"
    assert len(answer["suspension"]["digest"]) == 16
    done = await worldline("suspend", session.session_id, "--to", "tape")
    assert done.returncode == 2
    assert "memory, file" in done.stderr
    await session.refresh()
    blocks = await play(session, 2, 2)
    assert [signature(one) for one in blocks] == [signature(one) for one in twin[2:]]
    await session.close()
