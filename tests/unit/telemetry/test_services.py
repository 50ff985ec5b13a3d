"""Every service and its metrics' endpoint: at start, when the port is taken, and to its parent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.admission import main as admission
from services.admission.settings import AdmissionSettings
from services.engine import runtime as engine
from services.engine.settings import EngineSettings
from services.mover import main as mover
from services.mover.settings import MoverSettings
from services.mover.transport.memory import MemoryTransport
from services.placement import main as placement
from services.placement.settings import PlacementSettings
from worldline.cli import up
from worldline.errors import Unavailable
from worldline.rpc.host import ServiceSettings, announce_ready

Serve = Callable[[asyncio.Event], Awaitable[None]]


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def serving(service: str, listen: str, path: Path) -> Serve:
    """That service, about to start with its metrics at `listen`."""
    if service == "admission":
        settings = AdmissionSettings(metrics_listen=listen)
        return lambda stop: admission.serve(settings, stop)
    if service == "placement":
        of_placement = PlacementSettings(
            metrics_listen=listen,
            admission_address="127.0.0.1:1",
            directory_path=str(path / "directory.sqlite"),
        )
        return lambda stop: placement.serve(of_placement, stop)
    if service == "engine":
        of_engine = EngineSettings(
            metrics_listen=listen, placement_address="127.0.0.1:1", mover_address="127.0.0.1:1"
        )
        return lambda stop: engine.serve(of_engine, stop)
    of_mover = MoverSettings(metrics_listen=listen, runtime_dir=path, park_dir=path / "parked")
    return lambda stop: mover.serve(of_mover, stop, lambda _devices: MemoryTransport())


@pytest.mark.parametrize("service", ["admission", "placement", "mover", "engine"])
async def test_a_taken_port_ends_the_start_and_is_named(
    service: str, taken: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable) as caught:
            await serving(service, taken, tmp_path)(asyncio.Event())
    assert caught.value.reason == "METRICS_LISTEN_FAILED"
    assert caught.value.field == "metrics_listen"
    assert taken in caught.value.message


@pytest.mark.parametrize("metrics_address", ["", "127.0.0.1:9464"])
def test_the_parent_is_told_where_the_metrics_are(metrics_address: str) -> None:
    read_fd, write_fd = os.pipe()
    announce_ready(ServiceSettings(ready_fd=write_fd), "127.0.0.1:1", metrics_address)
    with os.fdopen(read_fd) as stream:
        said = json.loads(stream.readline())
    assert (said["address"], said["metrics_address"]) == ("127.0.0.1:1", metrics_address)


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    def service(name: str, metrics_address: str) -> Any:
        return SimpleNamespace(
            name=name, address="127.0.0.1:1", pid=7, metrics_address=metrics_address
        )

    return SimpleNamespace(
        path=tmp_path,
        placement_address="127.0.0.1:1",
        admission_address="127.0.0.1:2",
        services={
            "placement": service("placement", "127.0.0.1:9464"),
            "admission": service("admission", ""),
        },
    )


def test_up_says_where_each_endpoint_is(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    up._announce(cluster, as_json=True)
    said = json.loads(capsys.readouterr().out)["services"]
    assert said["placement"]["metrics"] == "http://127.0.0.1:9464/metrics"
    assert "metrics" not in said["admission"]


def test_up_says_it_to_people_too(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[Any, ...]] = []
    monkeypatch.setattr(up, "print_table", lambda head, found: rows.extend([head, *found]))
    up._announce(cluster, as_json=False)
    assert ("placement", "http://127.0.0.1:9464/metrics") in rows
    assert not [row for row in rows if row[0] == "admission" and "http" in str(row)]
