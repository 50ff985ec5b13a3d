"""Real processes, real UCX: clusters and worlds for the end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.oracles import Oracles, bounded, play, until
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.contract import Contract, ServiceClass
from worldline.sdk import Client
from worldline.sdk.block import Block
from worldline.sdk.session import Session

ROOT = Path(__file__).parents[2]
SEED = 7
#: On each node of the cluster.
SLOTS = 3
#: Long enough for two busy cores; the arithmetic of admission has tests of its own.
PATIENT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=20_000)

FAULTY_MOVER = "tests.e2e.faulty_mover:main"


@dataclass
class Fault:
    """Arms the faulty mover of node-1."""

    directory: Path

    def arm(self, kind: str, nth: int = 1) -> None:
        """At the `nth` send of the next transfer, do `kind`: flip or hold."""
        (self.directory / "held").unlink(missing_ok=True)
        (self.directory / "arm").write_text(f"{kind} {nth}")

    async def held(self) -> None:
        """Until the armed transfer is stuck in the middle."""

        async def complaints() -> list[str]:
            return [] if (self.directory / "held").exists() else ["nothing is held"]

        await until(complaints)
        (self.directory / "held").unlink()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def cluster() -> AsyncIterator[LocalCluster]:
    """Two nodes, shared by all tests that leave it as they found it."""
    async with LocalCluster(ClusterOptions(slots=SLOTS, slot_bytes=16 << 20)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def client(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with Client(cluster.placement_address) as connected:
        yield connected


@pytest.fixture(scope="session")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Fault:
    return Fault(tmp_path_factory.mktemp("fault"))


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def faulty_nodes(fault: Fault) -> AsyncIterator[LocalCluster]:
    """What is behind `faulty_cluster`."""
    node = NodeOptions(
        mover_entry=FAULTY_MOVER,
        mover_variables={"chunk_bytes": str(1 << 20)},
        env={"WORLDLINE_TEST_FAULT_DIR": str(fault.directory), "PYTHONPATH": str(ROOT)},
    )
    options = ClusterOptions(slots=SLOTS, slot_bytes=16 << 20, node_options={"node-1": node})
    async with LocalCluster(options) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def faulty_cluster(faulty_nodes: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Two nodes whose parts may be killed, by tests that start them again and close their sessions;
    node-1's mover misbehaves when armed.

    What a test that failed has left is ended and named here: else its world would keep a slot of
    every test after it, which would be taken for leaks of theirs.
    """
    yield faulty_nodes
    dead = [name for name, one in faulty_nodes.services.items() if not one.running]
    for name in dead:
        await faulty_nodes.restart(name)
    async with bounded(), Client(faulty_nodes.placement_address) as client:
        left = [one.session_id for one in await client.sessions()]
        for session_id in left:
            await (await client.session(session_id)).close()
    assert (dead, left) == ([], []), "this test has left parts dead or sessions open"


async def make_twin(client: Client, count: int) -> list[Block]:
    """Blocks 0 to `count` of the world that never moves."""
    async with await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session:
        return await play(session, 0, count)


@dataclass
class Stage:
    """A world of two blocks on node-1, its twin, and the oracles' baseline."""

    session: Session
    twin: list[Block]
    oracles: Oracles


async def make_stage(cluster: LocalCluster, client: Client, blocks: int = 24) -> Stage:
    """Open, play two blocks, and observe once pools and paths are warm."""
    twin = await make_twin(client, blocks)
    warm = await client.open("tiny", seed=1, contract=PATIENT, node="node-1")
    async with warm:
        for target in ("node-2", "node-1"):
            (await warm.move(target)).raise_unless_committed()
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    await play(session, 0, 2)
    return Stage(session, twin, await Oracles.observe(cluster, client))
