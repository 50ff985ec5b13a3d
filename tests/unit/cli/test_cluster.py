# ruff: noqa: ASYNC240 - tests have nothing else to do meanwhile
from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from worldline.cli import cluster as cluster_module
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import Addresses, ClusterOptions, NodeOptions
from worldline.cli.rundir import find_cluster
from worldline.errors import Conflict, InvalidInput, NotFound, Unavailable

CHILDREN = "tests.unit.cli.children"
NODE = NodeOptions(mover_entry=f"{CHILDREN}:mover", engine_entry=f"{CHILDREN}:engine")
OPTIONS = ClusterOptions(
    nodes=2,
    start_timeout_s=100,
    admission_entry=f"{CHILDREN}:admission",
    placement_entry=f"{CHILDREN}:placement",
    node_options={"node-1": NODE, "node-2": NODE},
)


@pytest.fixture
def no_child_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not left


pytestmark = pytest.mark.usefixtures("no_child_left")


async def test_starts_and_stops_everything(tmp_path: Path) -> None:
    order = tmp_path / "order"
    events: list[str] = []
    options = replace(OPTIONS, env={"CHILDREN_ORDER_FILE": str(order)})
    async with LocalCluster(options, on_event=events.append) as cluster:
        path = cluster.path
        assert list(cluster.nodes) == ["node-1", "node-2"]
        assert len({child.address for child in cluster.services.values()}) == 6
        assert all(child.running for child in cluster.services.values())
        # Ctrl-C at a terminal reaches the process group of `up` only.
        groups = {os.getpgid(child.pid) for child in cluster.services.values()}
        assert groups == {child.pid for child in cluster.services.values()}
        found = find_cluster(path)
        assert found.placement_address == cluster.placement_address
        assert found.nodes == ("node-1", "node-2")
    assert not path.exists()
    # Clients of a service end before it.
    kinds = [line.split(":")[1] for line in order.read_text().splitlines()]
    assert kinds == ["engine", "engine", "mover", "mover", "placement", "admission"]
    assert any("engine-node-2 ready" in event for event in events)


async def test_settings_reach_the_children() -> None:
    node = replace(NODE, mover_variables={"chunk_bytes": "4096"}, env={"UCX_TLS": "tcp"})
    options = replace(OPTIONS, nodes=1, node_options={"node-1": node}, slots=3, threads=2)
    async with LocalCluster(options) as cluster:
        mover = psutil.Process(cluster.nodes["node-1"].mover.pid).environ()
        engine = psutil.Process(cluster.nodes["node-1"].engine.pid).environ()
        admission = psutil.Process(cluster.services["admission"].pid).environ()
        placement = psutil.Process(cluster.services["placement"].pid).environ()
        assert mover["WORLDLINE_MOVER_SLOT_COUNT"] == "3"
        assert mover["WORLDLINE_MOVER_CHUNK_BYTES"] == "4096"
        assert mover["WORLDLINE_MOVER_NODE_ID"] == "node-1"
        assert mover["UCX_TLS"] == "tcp"
        assert mover["WORLDLINE_MOVER_TRACE_STORE"] == cluster.placement_address
        assert mover["WORLDLINE_MOVER_DIE_WITH_PARENT"] == "true"
        assert Path(mover["WORLDLINE_MOVER_RUNTIME_DIR"]).is_dir()
        assert engine["WORLDLINE_ENGINE_THREADS"] == "2"
        assert engine["WORLDLINE_ENGINE_MOVER_ADDRESS"] == cluster.nodes["node-1"].mover.address
        # The trace store of a child that starts before placement is where placement will be.
        assert (
            admission["WORLDLINE_ADMISSION_TRACE_STORE"] == placement["WORLDLINE_PLACEMENT_LISTEN"]
        )
        assert (
            placement["WORLDLINE_PLACEMENT_ADMISSION_ADDRESS"]
            == cluster.services["admission"].address
        )


@pytest.mark.parametrize(
    ("entry", "shown"),
    [("dies", "NO_DEVICE (device): there is no such device"), ("dies_silently", "status 3")],
)
async def test_a_child_that_dies_at_start_stops_the_others(
    tmp_path: Path, entry: str, shown: str
) -> None:
    bad = replace(NODE, engine_entry=f"{CHILDREN}:{entry}")
    options = replace(OPTIONS, node_options={"node-1": NODE, "node-2": bad})
    cluster = LocalCluster(options, run_dir=tmp_path / "r")
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(80):  # it does not wait for who will never be ready
            await cluster.start()
    assert caught.value.reason == "SERVICE_START_FAILED"
    assert "engine-node-2" in caught.value.message
    assert shown in caught.value.message
    assert not any(child.running for child in cluster.services.values())
    assert not (tmp_path / "r").exists()


async def test_a_child_that_never_gets_ready(tmp_path: Path) -> None:
    options = replace(OPTIONS, admission_entry=f"{CHILDREN}:never_ready", start_timeout_s=1)
    with pytest.raises(Unavailable, match="admission was not ready within 1 s"):
        await LocalCluster(options, run_dir=tmp_path / "r").start()


async def test_a_taken_port_is_tried_again_and_then_said() -> None:
    events: list[str] = []
    options = replace(OPTIONS, placement_entry=f"{CHILDREN}:port_taken")
    with pytest.raises(Unavailable, match="LISTEN_FAILED"):
        await LocalCluster(options, on_event=events.append).start()
    assert sum("placement starting" in event for event in events) == 3


async def test_a_wanted_port_that_is_taken_is_named(kept_below: Path) -> None:
    options = replace(OPTIONS, placement_entry=f"{CHILDREN}:port_taken", port=7_411)
    with pytest.raises(Unavailable, match=r"port 7411 is taken.*--port") as caught:
        await LocalCluster(options, run_dir=kept_below / "r", keep_logs=True).start()
    assert list(kept_below.iterdir()) == []
    assert (caught.value.reason, caught.value.field) == ("PORT_TAKEN", "port")


@pytest.fixture
def kept_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kept logs go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def test_logs_of_a_child_that_died_are_kept(kept_below: Path) -> None:
    bad = replace(NODE, engine_entry=f"{CHILDREN}:dies")
    options = replace(OPTIONS, nodes=1, node_options={"node-1": bad})
    cluster = LocalCluster(options, run_dir=kept_below / "r", keep_logs=True)
    with pytest.raises(Unavailable):
        await cluster.start()
    assert cluster.kept_log_path is not None
    assert "NO_DEVICE" in (cluster.kept_log_path / "engine-node-1.log").read_text()
    assert not (kept_below / "r").exists()


@pytest.mark.parametrize(
    ("keep_logs", "kill", "kept"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
async def test_logs_are_kept_only_when_somebody_needs_them(
    kept_below: Path, keep_logs: bool, kill: bool, kept: int
) -> None:
    options = replace(OPTIONS, nodes=1)
    async with LocalCluster(options, run_dir=kept_below / "r", keep_logs=keep_logs) as cluster:
        if kill:
            await cluster.kill("engine-node-1")
    assert len(list(kept_below.glob("worldline-logs-*"))) == kept


async def test_what_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_event(text: str) -> None:
        """Nobody else is short of time."""
        stop_s = 0.3 if text == "mover-node-1 stopping" else 60.0
        monkeypatch.setattr(cluster_module, "STOP_S", stop_s)

    bad = replace(NODE, mover_entry=f"{CHILDREN}:ignores_sigterm")
    options = replace(OPTIONS, nodes=1, node_options={"node-1": bad})
    cluster = LocalCluster(options, on_event=on_event)
    await cluster.start()
    assert await cluster.stop() == ["mover-node-1"]
    assert not any(child.running for child in cluster.services.values())


async def test_cancelling_a_start_undoes_it(tmp_path: Path) -> None:
    options = replace(OPTIONS, placement_entry=f"{CHILDREN}:never_ready")
    ready = asyncio.Event()

    def on_event(text: str) -> None:
        if text.startswith("placement starting"):
            ready.set()

    cluster = LocalCluster(options, run_dir=tmp_path / "r", on_event=on_event)
    starting = asyncio.ensure_future(cluster.start())
    await asyncio.wait_for(ready.wait(), 60)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(child.running for child in cluster.services.values())
    assert not (tmp_path / "r").exists()


async def test_kill_restart_and_wait() -> None:
    async with LocalCluster(replace(OPTIONS, nodes=1)) as cluster:
        waiting = asyncio.ensure_future(cluster.wait_any())
        await asyncio.sleep(0)
        old = cluster.nodes["node-1"].engine
        await cluster.kill("engine-node-1")
        assert (await asyncio.wait_for(waiting, 60)).name == "engine-node-1"
        assert old.status == -9
        new = await cluster.restart("engine-node-1")
        assert cluster.nodes["node-1"].engine is new
        assert new.running
        assert new.pid != old.pid
        environment = psutil.Process(new.pid).environ()
        assert environment["WORLDLINE_ENGINE_LISTEN"] == old.address
        with pytest.raises(NotFound) as caught:
            await cluster.kill("nobody")
        assert caught.value.field == "name"


async def test_a_second_cluster_in_one_directory_is_refused(tmp_path: Path) -> None:
    options = replace(OPTIONS, nodes=0)
    async with LocalCluster(options, run_dir=tmp_path) as first:
        with pytest.raises(Conflict) as caught:
            await LocalCluster(options, run_dir=tmp_path).start()
        assert caught.value.reason == "CLUSTER_RUNNING"
        assert caught.value.field == "dir"
        assert first.placement_address in caught.value.message
        assert find_cluster(tmp_path).placement_address == first.placement_address
    assert list(tmp_path.iterdir()) == []
    async with LocalCluster(options, run_dir=tmp_path):
        pass


async def test_a_directory_with_other_files_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stale").write_text("from a cluster that was killed")
    async with LocalCluster(replace(OPTIONS, nodes=0), run_dir=tmp_path) as cluster:
        assert not (cluster.path / "run" / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_long_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        asyncio.run(LocalCluster(OPTIONS, run_dir=tmp_path / ("x" * 80)).start())
    assert caught.value.field == "dir"


def test_no_cluster_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="worldline up"):
        find_cluster(tmp_path)
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(NotFound):
        find_cluster(tmp_path)


def test_the_file_of_a_killed_cluster_names_none(tmp_path: Path) -> None:
    fields = {"placement_address": "a:1", "admission_address": "b:2", "nodes": ["node-1"]}
    (tmp_path / "cluster.json").write_text(json.dumps({"pid": os.getpid(), **fields}))
    assert find_cluster(tmp_path).placement_address == "a:1"
    (tmp_path / "cluster.json").write_text(json.dumps({"pid": 2**31 - 1, **fields}))
    with pytest.raises(NotFound):
        find_cluster(tmp_path)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"nodes": -1}, "nodes"),
        ({"slots": 0}, "slots"),
        ({"devices": ()}, "devices"),
        ({"devices": ("cpu", "gpu")}, "devices"),
        ({"slot_bytes": 5}, "slot_bytes"),
        ({"threads": 0}, "threads"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
    ],
)
def test_options_are_checked(fields: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ClusterOptions(**fields)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_nodes_get_the_devices_in_turn() -> None:
    options = ClusterOptions(nodes=3, devices=("cuda", "cpu"))
    assert [options.device_of(f"node-{number}") for number in (1, 2, 3)] == [
        "cuda:0",
        "cpu",
        "cuda:0",
    ]
    addresses = Addresses("p:1", "a:1", "m:1")
    mover = options.mover_spec(addresses, "node-1", Path("/run/x"))
    engine = options.engine_spec(addresses, "node-1")
    assert mover.variables["devices"] == engine.variables["device"] == "cuda:0"
    assert engine.variables["engine_id"] == "node-1-cuda0"
    assert options.engine_spec(addresses, "node-2").variables["engine_id"] == "node-2-cpu"
