"""Fault 37: SIGTERM while a service starts, in the middle of a move, and with four live worlds.

Every process ends by itself with status 0 and leaves nothing; the others reach a typed outcome. One
that has not got as far as its own handler ends by the signal, and has nothing yet.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import PATIENT, SEED, make_twin
from tests.e2e.held_cluster import HALF, held_cluster
from tests.e2e.hold import Hold
from tests.oracles import bounded, play, script, signature, until
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import Addresses, ClusterOptions
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.errors import WorldlineError
from worldline.sdk import Client
from worldline.sdk.block import Block
from worldline.sdk.move_record import MoveRecord
from worldline.sdk.session import Session

pytestmark = pytest.mark.timeout(600)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - listed, never written
PATIENCE_S = 60.0
#: Enough that touching all of it takes a moment.
SLOT_BYTES = 512 << 20


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Sockets are made below it, and the kernel bounds their paths to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="wl-") as path:
        yield Path(path)


# --- while it starts ---


@asynccontextmanager
async def started(spec: ServiceSpec, directory: Path) -> AsyncIterator[ServiceProcess]:
    process = await ServiceProcess.start(spec, directory / f"{spec.name}.log")
    try:
        yield process
    finally:
        await process.kill()
        process.close()


async def terminated(process: ServiceProcess) -> int:
    process.signal(signal.SIGTERM)
    async with bounded(PATIENCE_S):
        status = await process.wait()
    assert "Traceback" not in process.log_path.read_text()
    return status


class Deaf:
    """Takes connections and says nothing: a peer that is there and does not answer."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.address = ""

    async def __aenter__(self) -> Deaf:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.set()
        await reader.read()
        writer.close()

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()


def specs(options: ClusterOptions, deaf: str, path: Path) -> dict[str, ServiceSpec]:
    addresses = Addresses(deaf, deaf, deaf)
    runtime = path / "node-1"
    runtime.mkdir(exist_ok=True)
    free = Addresses(f"127.0.0.1:{free_port()}", deaf, deaf)
    return {
        "admission": options.admission_spec(addresses),
        "placement": options.placement_spec(free, path),
        "mover": options.mover_spec(addresses, "node-1", runtime),
        "engine": options.engine_spec(addresses, "node-1"),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_sigterm_as_soon_as_it_runs(short_dir: Path) -> None:
    """Before it binds anything, wherever in its imports it is."""
    async with Deaf() as deaf:
        for spec in specs(ClusterOptions(), deaf.address, short_dir).values():
            async with started(spec, short_dir) as process:
                assert await terminated(process) in (0, -signal.SIGTERM)
    assert left_in(short_dir) == []


@pytest.mark.parametrize("service", ["mover", "engine"])
async def test_sigterm_while_it_waits_for_its_peers(short_dir: Path, service: str) -> None:
    async with Deaf() as deaf:
        spec = specs(ClusterOptions(slots=1), deaf.address, short_dir)[service]
        async with started(spec, short_dir) as process:
            async with asyncio.timeout(PATIENCE_S):
                await deaf.reached.wait()
            mapped = segments(process)
            assert await terminated(process) == 0
    assert left_in(short_dir) == []
    assert left_of(mapped) == []


async def test_sigterm_while_it_touches_its_slots(short_dir: Path) -> None:
    """Or just after, where the machine was quicker than the test."""
    async with Deaf() as deaf:
        options = ClusterOptions(slots=2, slot_bytes=SLOT_BYTES)
        spec = specs(options, deaf.address, short_dir)["mover"]
        async with started(spec, short_dir) as process:

            async def untouched() -> list[str]:
                memory = psutil.Process(process.pid).memory_info()
                touched = getattr(memory, "shared", 0)
                return [] if touched > SLOT_BYTES // 2 else [f"{touched} bytes of slots touched"]

            await until(untouched, PATIENCE_S)
            assert await terminated(process) == 0
    assert left_in(short_dir) == []


def segments(*processes: ServiceProcess) -> list[Path]:
    """The shared memory that they have mapped now, as long as it has a name."""
    mapped = [
        Path(each.path) for one in processes for each in psutil.Process(one.pid).memory_maps()
    ]
    return [each for each in mapped if SHARED_MEMORY in each.parents and each.exists()]


def left_of(found: list[Path]) -> list[Path]:
    """Those that are still there."""
    return [each for each in found if each.exists()]


def left_in(directory: Path) -> list[str]:
    """Sockets and files of services, their logs and directories of record apart."""
    kept = (".log", ".sqlite", ".traces")
    found = [each for each in directory.rglob("*") if not each.is_dir()]
    return sorted(str(each) for each in found if not each.name.endswith(kept))


# --- in the middle of a move, and with four live worlds ---


async def in_mid_push(cluster: LocalCluster, hold: Hold, client: Client, victim: str) -> None:
    """The victim ends while half of the bytes have moved; the world is in one place, or nowhere if
    the process that had it is gone.
    """
    twin = await make_twin(client, 6)
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    await play(session, 0, 2)
    hold.arm("node-1", HALF)
    moving = asyncio.ensure_future(session.move("node-2"))
    await hold.held()
    process = cluster.services[victim]
    assert await terminated_in(process) == 0
    if victim in ("admission", "engine-node-1", "engine-node-2"):
        hold.release()
    if victim == "placement":
        await cluster.restart(victim)
    async with bounded(PATIENCE_S * 2):
        (end,) = await asyncio.gather(moving, return_exceptions=True)
    assert isinstance(end, MoveRecord | WorldlineError)
    await until(lambda: nothing_under_way(client), PATIENCE_S)
    hold.release()
    (record, *_) = await client.moves(session.session_id)
    assert record.outcome in ("committed", "aborted")
    assert record.committed or record.reason
    if victim == "engine-node-1" and not record.committed:
        await until(lambda: is_lost(session), PATIENCE_S)
    else:
        await plays_on(session, twin)
    if victim != "placement":
        await cluster.restart(victim)
    await until(lambda: everybody_alive(client), PATIENCE_S)
    await session.close()
    await until(lambda: nothing_held(client), PATIENCE_S)


async def terminated_in(process: ServiceProcess) -> int:
    process.signal(signal.SIGTERM)
    async with bounded(PATIENCE_S):
        return await process.wait()


async def nothing_under_way(client: Client) -> list[str]:
    return [f"{one.move_id} is {one.phase.name}" for one in await client.moves(under_way=True)]


async def nothing_held(client: Client) -> list[str]:
    """Neither by the directory's count nor by the movers' own."""
    devices = [(one.node_id, each) for one in await client.nodes() for each in one.devices]
    return [
        f"{node_id}: {each}"
        for node_id, each in devices
        if each.slots_free < each.slots_total
        or each.slots_live + each.slots_shadow + each.slots_quarantined
    ]


async def is_lost(session: Session) -> list[str]:
    state = (await session.refresh()).state
    return [] if state == "lost" else [f"it is {state}"]


async def everybody_alive(client: Client) -> list[str]:
    nodes = await client.nodes()
    silent = [one.node_id for one in nodes if not one.alive]
    return silent + [each.engine_id for one in nodes for each in one.engines if not each.alive]


async def plays_on(session: Session, twin: list[Block]) -> None:
    for block in await play(session, 2, 3):
        assert signature(block) == signature(twin[block.index])


async def four_live_worlds(cluster: LocalCluster, client: Client) -> None:
    """All services at once, as `worldline up` ends them: nobody has to be killed."""
    begun = [asyncio.Event() for _ in range(4)]

    async def player(session: Session, begun: asyncio.Event) -> None:
        async for _ in session.play(script(100_000)):
            begun.set()

    sessions = [
        await client.open("tiny", seed=number, contract=PATIENT, node=f"node-{1 + number % 2}")
        for number in range(4)
    ]
    playing = [
        asyncio.ensure_future(player(session, one))
        for session, one in zip(sessions, begun, strict=True)
    ]
    async with bounded(PATIENCE_S):
        await asyncio.gather(*(one.wait() for one in begun))
    path = cluster.path
    mapped = segments(*cluster.services.values())
    killed = await cluster.stop()
    assert killed == []
    assert {name: each.status for name, each in cluster.services.items()} == dict.fromkeys(
        cluster.services, 0
    )
    for each in playing:
        each.cancel()
    ends = await asyncio.gather(*playing, return_exceptions=True)
    assert all(isinstance(end, WorldlineError | asyncio.CancelledError) for end in ends)
    assert not path.exists()
    assert left_of(mapped) == []
    assert not [each for each in cluster.services.values() if psutil.pid_exists(each.pid)]


PARTIES = (
    "admission", "engine-node-2", "mover-node-2", "placement", "mover-node-1", "engine-node-1",
)  # fmt: skip


async def test_each_party_of_a_move_and_then_all_with_four_worlds(tmp_path: Path) -> None:
    async with (
        held_cluster(tmp_path) as (cluster, hold),
        Client(cluster.placement_address) as client,
    ):
        async with await client.open("tiny", contract=PATIENT, node="node-1") as warm:
            for target in ("node-2", "node-1"):  # the path is measured
                (await warm.move(target)).raise_unless_committed()
        for victim in PARTIES:
            await in_mid_push(cluster, hold, client, victim)
        await four_live_worlds(cluster, client)
