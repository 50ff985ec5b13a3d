"""The placement process: settings, start, what stops it from starting, end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.placement.main import serve
from services.placement.schema import open_directory
from services.placement.settings import PlacementSettings
from worldline.errors import Conflict, InvalidInput, Unavailable
from worldline.rpc.channel import call, open_channel
from worldline.v1 import placement_pb2, placement_pb2_grpc

MAIN = [sys.executable, "-c", "from services.placement.main import main; main()"]
ROOT = Path(__file__).parents[3]


def settings(tmp_path: Path, **changes: object) -> PlacementSettings:
    fields: dict[str, object] = {
        "admission_address": "127.0.0.1:1",
        "directory_path": str(tmp_path / "directory.db"),
    }
    return PlacementSettings(**fields | changes)  # type: ignore[arg-type]


def test_a_process_says_where_it_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [
            *MAIN,
            "--admission-address=127.0.0.1:1",
            f"--directory-path={tmp_path / 'directory.db'}",
            f"--ready-fd={writing}",
            "--log-format=json",
        ],
        cwd=ROOT,
        pass_fds=[writing],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        ready = json.loads(stream.readline())

    async def ask() -> placement_pb2.DescribePlacementResponse:
        channel = open_channel(ready["address"])
        stub = placement_pb2_grpc.PlacementServiceStub(channel)
        answer: placement_pb2.DescribePlacementResponse = await call(
            stub.DescribePlacement, placement_pb2.DescribePlacementRequest(), timeout_s=60
        )
        await channel.close()
        return answer

    counts = asyncio.run(ask()).census.counts
    assert (counts["open_moves"], counts["sessions"]) == (0, 0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not list(tmp_path.glob("*-wal"))
    assert not list(tmp_path.glob("*-shm"))


def test_help_describes_every_setting() -> None:
    done = subprocess.run(
        [*MAIN, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    for name, field in PlacementSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in done.stdout
        assert field.description


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=str(port)) as caught:
            await serve(settings(tmp_path, listen=f"127.0.0.1:{port}"), asyncio.Event())
    assert caught.value.field == "listen"


async def test_a_directory_that_another_holds_is_refused(tmp_path: Path) -> None:
    db = open_directory(str(tmp_path / "directory.db"))
    with pytest.raises(Conflict) as caught:
        await serve(settings(tmp_path), asyncio.Event())
    assert caught.value.reason == "DIRECTORY_LOCKED"
    db.close()


async def test_a_trace_store_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        await serve(settings(tmp_path, traces_path=str(tmp_path / "no" / "t")), asyncio.Event())
    assert caught.value.field == "traces_path"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"directory_path": "/nowhere/at/all/directory.db"}, "directory_path"),
        ({"admission_address": "admission"}, "admission_address"),
        ({"trace_store": "127.0.0.1:99999"}, "trace_store"),
    ],
)
async def test_surroundings_that_cannot_work_are_refused(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    with pytest.raises((InvalidInput, Unavailable)) as caught:
        await serve(settings(tmp_path, **changes), asyncio.Event())
    assert caught.value.field == field


@pytest.mark.parametrize(
    "changes", [{"engine_lease_ms": 0}, {"node_lease_ms": -1}, {"rest_s": float("nan")}]
)
def test_settings_are_bounded(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        settings(tmp_path, **changes)
