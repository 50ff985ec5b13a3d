"""The process: starts, refuses what cannot work, registers, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.mover.main import serve
from services.mover.membership import host_id
from services.mover.reservation import Reservations
from services.mover.settings import MoverSettings
from services.mover.slots import SlotRole
from services.mover.transport.memory import MemoryTransport
from tests.unit.mover.cluster import start_admission, until
from worldline.cuda.availability import unavailable_reason
from worldline.errors import InvariantBroken, NotFound, Unavailable
from worldline.rpc.channel import call, open_channel
from worldline.rpc.server import GrpcServer
from worldline.v1 import (
    mover_pb2,
    mover_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
)

ROOT = Path(__file__).parents[3]


def memory_transport(cuda_devices: Sequence[int]) -> MemoryTransport:
    assert not cuda_devices
    return MemoryTransport()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def run_to_end(*arguments: str, **environment: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.mover.main",
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    try:
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """Fault 35."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, errors = await run_to_end(
            "--listen", f"127.0.0.1:{port}", "--runtime-dir", str(tmp_path)
        )
    assert code == 1
    assert f"127.0.0.1:{port}" in errors.splitlines()[-1]


@pytest.mark.parametrize("lanes", ["nonsense", "cuda_ipc", "self"])
async def test_lanes_that_cannot_work_are_refused_at_start(tmp_path: Path, lanes: str) -> None:
    """Fault 33."""
    code, errors = await run_to_end(
        "--runtime-dir", str(tmp_path), UCX_TLS=lanes, UCX_LOG_LEVEL="fatal"
    )
    assert code == 1
    assert f"UCX_TLS={lanes}" in errors.splitlines()[-1]
    assert files(tmp_path) == []


async def test_a_runtime_dir_that_is_none_is_refused(tmp_path: Path) -> None:
    code, errors = await run_to_end("--runtime-dir", str(tmp_path / "missing"))
    assert code == 1
    assert "runtime_dir" in errors.splitlines()[-1]


async def test_sigterm_ends_it_and_leaves_no_file(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.mover.main",
        "--runtime-dir",
        str(tmp_path),
        "--ready-fd",
        str(writing),
        "--slot-count",
        "1",
        pass_fds=(writing,),
        cwd=ROOT,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as stream:
            async with asyncio.timeout(60):
                line = await asyncio.to_thread(stream.readline)
        ready = json.loads(line)
        assert ready["pid"] == process.pid
        assert files(tmp_path) == ["mover-node-0.sock"]
        channel = open_channel(ready["address"])
        stub = mover_pb2_grpc.MoverServiceStub(channel)
        answer = await call(stub.DescribeMover, mover_pb2.DescribeMoverRequest(), timeout_s=60)
        assert answer.census.counts["slots_free"] == 1
        await channel.close()
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        assert files(tmp_path) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_reaper_that_fails_ends_the_mover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than serve on and let nothing that is staged ever run out."""

    def broken(*_: Any) -> Any:
        raise InvariantBroken("no transition")

    monkeypatch.setattr(Reservations, "due", broken)
    settings = MoverSettings(runtime_dir=tmp_path, slot_count=1, slot_bytes=1 << 20)
    async with asyncio.timeout(60):
        with pytest.raises(InvariantBroken):
            await serve(settings, asyncio.Event(), memory_transport)
    assert files(tmp_path) == []


class _Placement(placement_pb2_grpc.PlacementServiceServicer):
    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.renewed: list[Any] = []
        self.orphans: list[Any] = []
        self.forgotten = False

    async def RegisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.registered.append(request)
        self.forgotten = False
        return placement_pb2.RegisterNodeResponse(lease_ms=300)

    async def RenewNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.forgotten:
            raise NotFound("no such node")
        self.renewed.append(request)
        return placement_pb2.RenewNodeResponse(lease_ms=300, orphans=self.orphans)


@asynccontextmanager
async def service(tmp_path: Path) -> AsyncIterator[tuple[_Placement, Any]]:
    """A mover of memory transport beside a placement and an admission."""
    async with AsyncExitStack() as stack:
        _, admission = await start_admission(stack)
        placement = _Placement()
        server = GrpcServer()
        server.bind("127.0.0.1:0")
        server.add(
            placement_pb2_grpc.add_PlacementServiceServicer_to_server,
            placement,
            "worldline.v1.PlacementService",
        )
        await server.start()
        stack.push_async_callback(server.stop, 0.2)
        settings = MoverSettings(
            node_id="n",
            placement_address=server.address,
            admission_address=admission,
            runtime_dir=tmp_path,
            slot_bytes=1 << 20,
            grace_s=0.2,
        )
        stop = asyncio.Event()
        serving = asyncio.ensure_future(serve(settings, stop, memory_transport))
        await until(lambda: bool(placement.registered) or serving.done())
        channel = open_channel(placement.registered[0].mover_address)
        try:
            yield placement, mover_pb2_grpc.MoverServiceStub(channel)
        finally:
            await channel.close()
            stop.set()
            await asyncio.wait_for(serving, 60)


async def test_a_node_registers_renews_and_releases_orphans(tmp_path: Path) -> None:
    async with service(tmp_path) as (placement, stub):
        first = placement.registered[0]
        assert (first.node_id, first.host_id) == ("n", host_id())
        (cpu,) = first.devices
        assert (cpu.name, cpu.uuid, cpu.slots_total, cpu.slot_bytes) == ("cpu", "", 2, 1 << 20)
        request = mover_pb2.AllocateRequest(session_id="s", extent_bytes=100)
        slot = (await call(stub.Allocate, request, timeout_s=60)).slot
        await until(lambda: any(renewal.slots for renewal in placement.renewed))
        use = next(renewal for renewal in placement.renewed if renewal.slots).slots[0]
        assert (use.slot, use.role, use.session_id) == (slot, SlotRole.LIVE, "s")
        placement.orphans = [slot]
        await until(lambda: not placement.renewed[-1].slots)
        placement.orphans = []


async def test_a_forgotten_node_registers_again(tmp_path: Path) -> None:
    async with service(tmp_path) as (placement, _):
        placement.forgotten = True
        await until(lambda: len(placement.registered) >= 2)
        again, first = placement.registered[1], placement.registered[0]
        assert again.incarnation == first.incarnation
        await until(lambda: bool(placement.renewed))


async def test_a_start_that_waits_for_placement_ends_at_once_when_stopped(tmp_path: Path) -> None:
    settings = MoverSettings(placement_address="127.0.0.1:1", runtime_dir=tmp_path, grace_s=0.2)
    stop = asyncio.Event()
    stop.set()
    async with asyncio.timeout(60):
        await serve(settings, stop, memory_transport)
    assert files(tmp_path) == []


async def test_without_placement_the_start_is_given_up(tmp_path: Path) -> None:
    settings = MoverSettings(
        placement_address="127.0.0.1:1", register_within_s=0.3, runtime_dir=tmp_path
    )
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(60):
            await serve(settings, asyncio.Event(), memory_transport)
    assert caught.value.field == "placement_address"
    assert files(tmp_path) == []


@pytest.mark.skipif(unavailable_reason() is None, reason="this machine has a GPU")
async def test_slots_on_a_gpu_that_is_not_there_name_the_setting(tmp_path: Path) -> None:
    status, errors = await run_to_end("--devices", "cpu,cuda:0", "--runtime-dir", str(tmp_path))
    assert status == 1
    assert "CUDA_UNAVAILABLE (devices)" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "changes",
    [
        {"slot_count": 0},
        {"slot_bytes": 0},
        {"chunk_bytes": (1 << 20) + 1},
        {"chunk_bytes": 1},
        {"window_chunks": 0},
        {"window_chunks": 65},
        {"staged_hold_s": 0},
        {"devices": ""},
        {"devices": "cpu,gpu"},
        {"devices": "cuda,cuda:0"},
        {"devices": ()},
        {"unknown": 1},
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MoverSettings(**changes)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("cuda", ("cuda:0",)),
        ("cuda:1, cpu", ("cuda:1", "cpu")),
        (("cpu", "cuda:2"), ("cpu", "cuda:2")),
    ],
)
def test_devices_are_named_in_full(value: Any, names: tuple[str, ...]) -> None:
    assert MoverSettings(devices=value).devices == names


def test_devices_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_MOVER_DEVICES", "cuda:1,cuda:0")
    assert MoverSettings().devices == ("cuda:1", "cuda:0")
