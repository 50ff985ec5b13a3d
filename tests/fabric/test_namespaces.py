"""Namespaces: what is made is what was asked for, and nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fabric import namespaces
from tests.fabric.namespaces import FABRIC, Port, fabric_of, inside, iproute, remains
from worldline.errors import Unavailable

pytestmark = pytest.mark.usefixtures("fabric_possible")

PORT = Port(100_000_000)


def links(*command: str) -> list[str]:
    """Names of the interfaces that a command line of `ip` shows."""
    return [each["ifname"] for each in json.loads(iproute("ip", *command, "-json", "link"))]


def test_nothing_of_it_is_in_the_root_namespace_and_nothing_stays() -> None:
    before = links()
    with fabric_of(("a", "b"), PORT) as fabric:
        assert links() == before
        assert len(remains(os.getpid())) == 4
        assert set(links("-n", fabric.nodes["a"].namespace)) == {"lo", "control", "fabric"}
        assert set(links("-n", fabric.driver.namespace)) == {"lo", "control"}
    assert links() == before
    assert remains(os.getpid()) == []


def test_ports_have_the_shape_asked_for_in_both_directions() -> None:
    with fabric_of(("a", "b"), PORT, {"b": 50_000_000}) as fabric:
        switch = fabric.driver.namespace.removesuffix("driver") + "switch"
        sent = _rate_bits_per_s(fabric.nodes["b"].namespace, FABRIC)
        received = _rate_bits_per_s(switch, f"{FABRIC}2")
    assert (sent, received) == (50_000_000, 100_000_000)


def test_made_half_way_is_removed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise Unavailable("no shape", reason="NAMESPACE_FAILED")

    monkeypatch.setattr(namespaces, "_shape", refuse)
    with pytest.raises(Unavailable, match="no shape"), fabric_of(("a",), PORT):
        pytest.fail("it was made without a shape")
    assert remains(os.getpid()) == []


def test_whoever_is_still_inside_is_ended() -> None:
    with fabric_of(("a",), PORT) as fabric:
        command = inside(fabric.nodes["a"].namespace, [sys.executable, "-c", _FOREVER])
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"in\n"
    try:
        assert process.wait(timeout=60) == -signal.SIGKILL
    finally:
        process.kill()
    assert remains(os.getpid()) == []


def test_what_a_killed_process_left_goes_with_the_next_fabric() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(timeout=60)
    left = f"worldline-{dead.pid}-cafe-a"
    iproute("ip", "netns", "add", left)
    mine = "worldline-no-number-here"  # not named as this module names: not its own to remove
    iproute("ip", "netns", "add", mine)
    try:
        with fabric_of(("a",), PORT):
            assert remains(dead.pid) == []
        assert Path("/run/netns", mine).exists()
    finally:
        iproute("ip", "netns", "delete", mine)


_FOREVER = "import signal; print('in', flush=True); signal.pause()"


def _rate_bits_per_s(namespace: str, device: str) -> int:
    (qdisc,) = json.loads(iproute("tc", "-n", namespace, "-json", "qdisc", "show", "dev", device))
    assert qdisc["kind"] == "tbf"
    return int(qdisc["options"]["rate"]) * 8
