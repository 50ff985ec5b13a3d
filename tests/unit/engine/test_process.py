"""The engine's process: what keeps it from starting is said in one line, soon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from worldline.v1 import placement_pb2, placement_pb2_grpc

DEADLINE_S = 90


def command(*arguments: str) -> list[str]:
    base = [sys.executable, "-m", "services.engine.main", "--engine-id", "e1", "--node-id", "n1"]
    return [*base, "--mover-address", "127.0.0.1:1", *arguments]


def test_a_taken_port_is_named_within_five_seconds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = command("--listen", listen, "--placement-address", "127.0.0.1:1")
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert listen in done.stderr
    assert "Traceback" not in done.stderr


def test_a_placement_that_is_not_there_is_named() -> None:
    arguments = command("--placement-address", "127.0.0.1:1", "--register-timeout-s", "0.1")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "PLACEMENT_UNREACHABLE (placement_address)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--threads", "0"),
        ("--device", "tpu"),
        ("--weights-seed", "-1"),
        ("--trace-store", "nowhere"),
    ],
)
def test_a_bad_setting_is_named(flag: str, value: str) -> None:
    arguments = command("--placement-address", "127.0.0.1:1", flag, value)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode != 0
    assert flag.strip("-").replace("-", "_") in done.stderr


class Placement(placement_pb2_grpc.PlacementServiceServicer):
    """Grants every lease, unless it is `away`."""

    def __init__(self) -> None:
        self.away = False
        self.asked = threading.Event()
        self.registered: list[placement_pb2.RegisterEngineRequest] = []

    def RegisterEngine(self, request, context):  # noqa: N802
        self.asked.set()
        if self.away:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        self.registered.append(request)
        return placement_pb2.RegisterEngineResponse(lease_ms=3000)

    def RenewEngine(self, request, context):  # noqa: N802
        return placement_pb2.RenewEngineResponse(lease_ms=3000)


@contextmanager
def placement() -> Iterator[tuple[Placement, str]]:
    servicer = Placement()
    server = grpc.server(ThreadPoolExecutor(2))
    placement_pb2_grpc.add_PlacementServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(DEADLINE_S)


def test_it_registers_announces_and_ends_cleanly_on_sigterm() -> None:
    reading, writing = os.pipe()
    with placement() as (servicer, address), os.fdopen(reading) as ready:
        process = subprocess.Popen(
            command("--placement-address", address, "--ready-fd", str(writing), "--grace-s", "0"),
            pass_fds=(writing,),
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writing)
        try:
            announced = json.loads(ready.readline())
            assert announced["pid"] == process.pid
            (request,) = servicer.registered
            assert request.engine_address == announced["address"]
            assert (request.engine_id, request.node_id, request.device) == ("e1", "n1", "cpu")
            assert request.fingerprint.facts["threads"] == "1"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait(DEADLINE_S)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_sigterm_while_it_waits_for_placement_ends_it_soon() -> None:
    with placement() as (servicer, address):
        servicer.away = True
        arguments = command("--placement-address", address, "--register-timeout-s", "600")
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        try:
            assert servicer.asked.wait(DEADLINE_S)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait(DEADLINE_S)
    assert process.returncode == 0
