"""`worldline-health`: the answer and the exit status of every case, with real servers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

from worldline.cli.health import main
from worldline.rpc.server import GrpcServer

NAME = "worldline.v1.MoverService"
#: A file that takes nothing.
FULL = "/dev/full"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[GrpcServer]:
    serving = GrpcServer()
    serving.bind("127.0.0.1:0")
    serving.add(lambda _servicer, _server: None, None, NAME)
    await serving.start()
    yield serving
    await serving.stop(0)


async def _run(*arguments: str, out: str = "") -> tuple[int, str, str]:
    """Status, output (empty where it goes to the file `out`) and errors."""
    with open(out or os.devnull, "wb") as file:  # noqa: ASYNC230 - a device
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "worldline.cli.health", *arguments,
            stdout=file if out else asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            said, err = await child.communicate()
    return child.returncode or 0, (said or b"").decode(), err.decode()


async def test_who_serves_is_0_and_says_so(server: GrpcServer) -> None:
    assert await _run(server.address, "--timeout", "60") == (0, "SERVING\n", "")
    status, out, _ = await _run(server.address, "--service", NAME, "--timeout", "60", "--json")
    assert status == 0
    assert json.loads(out) == {"address": server.address, "service": NAME, "status": "SERVING"}


async def test_who_says_no_is_1(server: GrpcServer) -> None:
    await server._health.set(NAME, health_pb2.HealthCheckResponse.NOT_SERVING)
    status, out, _ = await _run(server.address, "--service", NAME, "--timeout", "60")
    assert (status, out) == (1, "NOT_SERVING\n")


async def test_an_unknown_service_is_4(server: GrpcServer) -> None:
    status, out, err = await _run(server.address, "--service", "worldline.v1.No", "--timeout", "60")
    assert (status, out) == (4, "")
    assert err.endswith("NOT_FOUND: it has no worldline.v1.No\n")
    assert server.address in err


async def test_what_cannot_be_written_is_one_line(server: GrpcServer) -> None:
    status, _, err = await _run(server.address, "--timeout", "60", out=FULL)
    assert status == 1
    assert err.startswith("worldline-health: OUTPUT_FAILED: ")
    assert err.count("\n") == 1


async def test_a_name_that_is_no_text_is_2(server: GrpcServer) -> None:
    status, _, err = await _run(server.address, "--service", "\udcff")
    assert status == 2
    assert err.count("\n") == 1


async def test_nobody_there_is_5_at_once() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        status, _, err = await _run(address, "--timeout", "60")
    assert status == 5
    assert "UNAVAILABLE" in err


async def test_silence_is_5_when_the_time_is_over() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        status, _, err = await _run(address, "--timeout", "0.2")
    assert status == 5
    assert address in err


@pytest.mark.parametrize(
    "arguments",
    [["node-1"], ["[::]:7400"], ["a:1", "--timeout", "0"], ["a:1", "--timeout", "x"], []],
)
def test_a_wrong_command_line_is_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err
