"""The mover's self-test: refuses at start what cannot work, and says what works but slowly."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.mover.doctor import check_surroundings, read_mover_facts
from services.mover.settings import MoverSettings
from services.mover.transport.resources import parse_resources
from tests.smallshm import under_shm_of, why_not
from worldline.doctor.memorycheck import SHARED_MEMORY_MIN_BYTES
from worldline.errors import InvalidInput, Unavailable

ROOT = Path(__file__).parents[3]
END_S = 60.0
MOVER = (sys.executable, "-m", "services.mover.main")
QUIET = {"UCX_LOG_LEVEL": "fatal"}


@pytest.fixture
def small_shm() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@asynccontextmanager
async def process_of(
    command: Sequence[str], environment: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **QUIET, **environment},
    )
    try:
        async with asyncio.timeout(END_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def refusal_of(
    directory: Path, *, shm: str = "", arguments: Sequence[str] = (), **environment: str
) -> str:
    """The last line of a mover that ends with status 1 by itself."""
    command = [*MOVER, "--runtime-dir", str(directory), *arguments]
    async with process_of(under_shm_of(shm, command) if shm else command, environment) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1, errors.decode()
    assert os.listdir(directory) == []
    return errors.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("variables", "code", "field"),
    [
        ({"UCX_NET_DEVICES": "mlx5_9:1"}, "UCX_NET_DEVICES_NOTHING", "UCX_NET_DEVICES"),
        ({"UCX_TLS": "tcp,nonsense"}, "UCX_TLS_UNKNOWN", "UCX_TLS"),
        ({"UCX_TLS": "gdr_copy"}, "UCX_TLS_NOTHING", "UCX_TLS"),
        ({"WORLDLINE_MOVER_PLACEMENT_ADDRESS": "here"}, "INVALID_INPUT", "placement_address"),
    ],
)
async def test_what_cannot_work_is_refused_with_its_name(
    tmp_path: Path, variables: dict[str, str], code: str, field: str
) -> None:
    """Fault 33: UCX itself only logs the first two, and goes on without a network."""
    last = await refusal_of(tmp_path, **variables)
    assert last.startswith(f"worldline: {code} ({field}): ")
    assert next(iter(variables.values())) in last


@pytest.mark.usefixtures("small_shm")
@pytest.mark.parametrize("size", ["1m", "16m"])
async def test_a_dev_shm_that_is_too_small_is_refused(tmp_path: Path, size: str) -> None:
    """Fault 34: with 1 MB UCX falls back to TCP and says nothing, with 16 MB it crashes."""
    last = await refusal_of(tmp_path, shm=size)
    assert last.startswith("worldline: SHARED_MEMORY_TOO_SMALL (/dev/shm): ")
    assert "--shm-size" in last
    assert "WORLDLINE_MOVER_LANE=tcp" in last


@pytest.mark.usefixtures("small_shm")
@pytest.mark.parametrize(
    ("size", "arguments", "said"),
    [("64m", (), "SHARED_MEMORY_SMALL"), ("1m", ("--lane", "tcp"), "slots.prefaulted")],
)
async def test_a_dev_shm_that_does_is_worth_a_line(
    tmp_path: Path, size: str, arguments: tuple[str, ...], said: str
) -> None:
    """Fault 34: 64 MB is what a container has that asks for nothing; TCP needs none at all."""
    slots = ("--slot-count", "1", "--slot-bytes", str(1 << 20))
    command = [*MOVER, "--runtime-dir", str(tmp_path), *slots, *arguments]
    async with process_of(under_shm_of(size, command), {}) as process:
        assert process.stderr is not None
        lines = []
        while line := await process.stderr.readline():
            lines.append(line.decode())
            if said in lines[-1]:
                break
        assert said in lines[-1], lines
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


def test_one_process_and_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same without a process: which variables are looked at, and what is left alone."""
    settings = MoverSettings(runtime_dir=tmp_path)
    monkeypatch.delenv("UCX_TLS", raising=False)
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    check_surroundings(settings)
    monkeypatch.setenv("UCX_NET_DEVICES", "nobody0")
    with pytest.raises(Unavailable) as caught:
        check_surroundings(settings)
    assert (caught.value.reason, caught.value.field) == (
        "UCX_NET_DEVICES_NOTHING",
        "UCX_NET_DEVICES",
    )
    check_surroundings(settings, ucx=False)  # bytes travel otherwise
    with pytest.raises(InvalidInput):
        check_surroundings(MoverSettings(runtime_dir=tmp_path, admission_address="x"), ucx=False)


def test_facts_name_the_settings_and_what_the_variables_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    facts = read_mover_facts(MoverSettings(node_id="n", runtime_dir=tmp_path, slot_bytes=1 << 20))
    assert (facts.service, facts.instance, facts.node_id) == ("mover", "n", "n")
    assert (facts.settings["lane"], facts.settings["slot_bytes"]) == ("auto", str(1 << 20))
    assert set(facts.lanes_left) < set(facts.lanes_here)
    assert {lane.partition("/")[0] for lane in facts.lanes_left} == {"tcp", "self"}
    assert "ucx" in facts.versions


def test_resources_as_ucx_prints_them() -> None:
    text = """#
# UCP context
#     component 0  :  self
#            md 1  :  component 1  tcp
#      resource 0  :  md 0  dev 0  flags -- self/memory
#      resource 1  :  md 1  dev 1  flags -s tcp/eth0
#      resource 10 :  md 3  dev 2  flags a- rc_mlx5/mlx5_0:1
"""
    assert parse_resources(text) == ("rc_mlx5/mlx5_0:1", "self/memory", "tcp/eth0")
    assert parse_resources("") == ()


def test_the_least_shared_memory_is_more_than_what_crashes_ucx() -> None:
    assert SHARED_MEMORY_MIN_BYTES > 17 << 20
