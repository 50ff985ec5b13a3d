"""Determinism: runs replay to the same digests; unequal nodes are refused at T0, taken at T1."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.conftest import PATIENT, ROOT, SEED
from tests.oracles import bounded, play, script
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.contract import Contract, DeterminismTier, ServiceClass
from worldline.errors import Conflict, InvalidInput
from worldline.recording import ReplayWish, compare_runs, read_run, record, replay
from worldline.sdk import Action, Client, MovePhase, ParkKind, Rejected, Session
from worldline.state.manifest import Fingerprint
from worldline.state.remedies import remedies

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORLDLINE = str(Path(sys.executable).with_name("worldline"))
BLOCKS = 6
LENIENT = replace(PATIENT, tier_drop_allowed=True)
C4 = Contract(ServiceClass.C4_REPLAY, horizon_ms=60_000)
T1 = DeterminismTier.T1_SCHEDULE_STABLE
#: Of the second node: other kernels of the same CPU.
OTHERWISE = NodeOptions(env={"ATEN_CPU_CAPABILITY": "default"})
#: Of the third: a model that counts on its object.
UNSTEADY = NodeOptions(engine_entry="tests.e2e.unsteady_engine:main", env={"PYTHONPATH": str(ROOT)})


async def moving(session: Session, count: int, start: int = 0) -> AsyncIterator[Action]:
    """A player who has the session moved half way."""
    for index, action in enumerate(script(count, start)):
        if index == count // 2:
            (await session.move("node-2")).raise_unless_committed()
        yield action


async def test_a_run_that_moved_replays_to_the_same_digests(client: Client, tmp_path: Path) -> None:
    async with (
        bounded(),
        await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session,
    ):
        made = await record(session, moving(session, BLOCKS), tmp_path / "one")
    assert [block.epoch for block in made.blocks] == [1] * 3 + [2] * 3
    assert read_run(tmp_path / "one") == made
    async with bounded():
        replayed = await replay(client, made, ReplayWish(node_id="node-1"), tmp_path / "other")
    assert (replayed.difference, replayed.blocks_differing) == (None, 0)
    assert replayed.run.header.contract.service_class is ServiceClass.C4_REPLAY
    assert compare_runs(made, read_run(tmp_path / "other")) is None
    live = {one.session_id for one in await client.sessions() if one.state == "live"}
    assert replayed.run.header.session_id not in live


async def test_a_run_replays_from_a_fork_that_was_kept_where_it_began(
    client: Client, tmp_path: Path
) -> None:
    async with (
        bounded(),
        await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session,
    ):
        await play(session, 0, 2)
        kept, wrong = await session.fork(2, contract=C4, same_noise=True)
        made = await record(session, script(3, 2), tmp_path / "one")
        assert made.header.block_index == 2
        with pytest.raises(InvalidInput) as unnamed:
            await replay(client, made)
        assert unnamed.value.field == "from"
        await play(wrong, 2, 1)
        with pytest.raises(Conflict) as elsewhere:
            await replay(client, made, ReplayWish(snapshot_id=wrong.session_id))
        assert elsewhere.value.reason == "SNAPSHOT_DIFFERS"
        assert "name one that does" in elsewhere.value.message
        replayed = await replay(client, made, ReplayWish(snapshot_id=kept.session_id))
        assert replayed.difference is None
        assert len(replayed.run.blocks) == 3
        for one in (kept, wrong):
            await one.close()


async def test_another_player_is_noticed(client: Client, tmp_path: Path) -> None:
    """A run in which somebody else's blocks are is none."""
    async with (
        bounded(),
        await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session,
    ):
        other = await client.session(session.session_id)

        async def interrupted() -> AsyncIterator[Action]:
            for index, action in enumerate(script(3)):
                if index == 2:
                    await play(other, 2, 1)
                yield action

        with pytest.raises(Conflict):
            await record(session, interrupted(), tmp_path / "one")
    assert len(read_run(tmp_path / "one").blocks) == 2


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def uneven() -> AsyncIterator[Client]:
    """Three nodes, none like another."""
    nodes = {"node-2": OTHERWISE, "node-3": UNSTEADY}
    options = ClusterOptions(nodes=3, slots=4, slot_bytes=16 << 20, node_options=nodes)
    async with LocalCluster(options) as cluster, Client(cluster.placement_address) as connected:
        yield connected


async def test_a_preset_that_differs_from_itself_is_found_and_opened_at_t1_alone(
    uneven: Client,
) -> None:
    client = uneven
    async with bounded():
        with pytest.raises(Rejected) as refused:
            await client.open("tiny", seed=SEED, contract=PATIENT, node="node-3")
        assert refused.value.reason == "NOT_DETERMINISTIC"
        async with await client.open("tiny", seed=SEED, contract=LENIENT, node="node-3") as session:
            assert session.info.contract.determinism_tier is T1
            assert len(await play(session, 0, 1)) == 1
        engines = [node.engines[0] for node in await client.nodes()]
        assert engines[2].differing == ("tiny",)
        assert engines[0].differing == ()


async def test_an_unequal_node_is_found_refused_at_t0_and_taken_at_t1(
    uneven: Client, tmp_path: Path
) -> None:
    client = uneven
    async with bounded(300):
        here, there = [node.engines[0] for node in await client.nodes()][:2]
        facts = (Fingerprint.of(here.facts), Fingerprint.of(there.facts))
        assert "start both engines with the same numerics environment" in remedies(*facts)
        async with await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as exact:
            made = await record(exact, script(2), tmp_path / "one")
            refused = await exact.move("node-2")
            assert refused.phase is MovePhase.REJECTED
            assert refused.verdict is not None
            assert refused.verdict.reason.name == "FINGERPRINT_MISMATCH"
            assert "ATEN_CPU_CAPABILITY=default" in refused.verdict.explanation
            assert "To make them equal" in refused.verdict.explanation
            await play(exact, 2, 1)
        async with await client.open("tiny", seed=SEED, contract=LENIENT, node="node-1") as session:
            await play(session, 0, 1)
            moved = await session.move("node-2")
            moved.raise_unless_committed()
            assert moved.tier_dropped
            listed = await session.refresh()
            assert (listed.node_id, listed.contract.determinism_tier) == ("node-2", T1)
            await play(session, 1, 1)
        with pytest.raises(Conflict, match="--tier t1") as unequal:
            await replay(client, made, ReplayWish(node_id="node-2"))
        assert unequal.value.reason == "FINGERPRINT_MISMATCH"
        loose = await replay(client, made, ReplayWish(node_id="node-2", tier=T1))
        # Whether bits differ is the CPU's to decide; if they do, that is what is said.
        if loose.difference is not None:
            # Noise that is drawn with other instructions may be other noise from the start.
            assert loose.difference.of_bytes
            assert loose.difference.block_index in (None, 0)
            assert loose.difference.leaf in {leaf.path for leaf in made.header.layout.tensors}
            assert loose.difference.granule is not None
        # Both have seen that their own blocks repeat.
        assert [node.engines[0].differing for node in await client.nodes()][:2] == [(), ()]


async def test_an_engine_that_came_back_otherwise_resumes_at_t1_alone() -> None:
    options = ClusterOptions(nodes=1, slots=4, slot_bytes=16 << 20)
    async with (
        bounded(300),
        LocalCluster(options) as cluster,
        Client(cluster.placement_address) as client,
    ):
        exact = await client.open("tiny", seed=SEED, contract=PATIENT)
        lenient = await client.open("tiny", seed=SEED, contract=LENIENT)
        for session in (exact, lenient):
            await play(session, 0, 2)
            await session.suspend(ParkKind.MEMORY)
        await cluster.kill("engine-node-1")
        former = cluster.services["engine-node-1"]
        listening = {**former.spec.variables, "listen": former.address}
        await cluster.start_service(replace(former.spec, variables=listening, env=OTHERWISE.env))
        with pytest.raises(Rejected) as refused:
            await exact.resume()
        assert refused.value.reason == "FINGERPRINT_MISMATCH"
        assert "ATEN_CPU_CAPABILITY=default" in refused.value.message
        assert (await exact.refresh()).state == "suspended"
        at = ("--placement", cluster.placement_address)
        command = (WORLDLINE, "resume", lenient.session_id, *at)
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "the session was at T0 and continues at T1" in done.stdout
        assert (await lenient.refresh()).contract.determinism_tier is T1
        assert [block.index for block in await play(lenient, 2, 2)] == [2, 3]
