"""Namespaces: a fabric of shaped links on one machine, with nothing of it in the root namespace.

Each node is a network namespace with two interfaces. `fabric` carries the bytes of moves: a veth
into a bridge in a namespace of its own, with a token bucket filter and a small buffer on the
bridge's side (what enters the node) and on the node's (what leaves it). `control` carries gRPC
over a bridge of its own that nothing shapes, as fleets have it: a lost packet of a grant would
cost a retransmit timer that no bytes caused. Whoever drives the nodes is in a namespace with
`control` alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worldline.errors import Unavailable

#: Interfaces of a node, and bridges.
FABRIC, CONTROL = "fabric", "control"
#: Linux's own default since 2.6.19.
CONGESTION_CONTROL = "cubic"
#: Nobody outside the namespaces sees them.
_NETWORKS = {FABRIC: "10.77.0", CONTROL: "10.78.0"}
_PREFIX = "worldline"
#: iproute2's own directory: one file a namespace.
_DIRECTORY = Path("/run/netns")
_COMMAND_S = 10.0
_TOOLS = ("ip", "tc")
#: A host does not drop what it sends itself: its network card pushes back on its sockets.
_EGRESS_LIMIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Port:
    """A switch's port, as `tc-tbf(8)` takes it; the node's own side of it has the same rate."""

    rate_bits_per_s: int
    #: What passes at once after silence; at least one packet, as large as the kernel joins them.
    burst_bytes: int = 32 << 10
    #: The buffer: what waits for tokens, beyond which packets are dropped.
    limit_bytes: int = 32 << 10
    #: Largest packet that the sender's kernel leaves to be cut later; a buffer that holds one
    #: packet or none is no buffer, and smaller ones cost the processor more.
    packet_bytes_max: int = 16 << 10
    #: What a sender waits at least before it sends again what nothing has come back for, by
    #: Linux's own default.
    retransmit_min_ms: int = 200

    @property
    def rate_bytes_per_s(self) -> float:
        """The same rate, in the unit of everything else."""
        return self.rate_bits_per_s / 8


@dataclass(frozen=True, slots=True)
class Node:
    """A namespace and its addresses; whoever only drives has no `fabric_ip`."""

    namespace: str
    control_ip: str
    fabric_ip: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """What was made: the nodes by name, and where their driver runs."""

    nodes: dict[str, Node]
    driver: Node
    port: Port


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a namespace; the process becomes the command."""
    return ["ip", "netns", "exec", namespace, *command]


@contextlib.contextmanager
def fabric_of(
    names: Sequence[str], port: Port, egress_bits_per_s: Mapping[str, int] | None = None
) -> Iterator[Fabric]:
    """Make the fabric, and remove all of it, whatever happens, processes inside included.

    `egress_bits_per_s` are nodes that send at another rate than their port's.

    Raises:
        Unavailable: NAMESPACE_FAILED, iproute2's own words are in the message.
    """
    _sweep()
    mark = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
    with contextlib.ExitStack() as stack:

        def make(name: str) -> str:
            namespace = f"{mark}-{name}"
            stack.callback(_remove, namespace)  # first: also when made half-way
            iproute("ip", "netns", "add", namespace)
            iproute("ip", "-n", namespace, "link", "set", "lo", "up")
            return namespace

        switch = make("switch")
        for bridge in (FABRIC, CONTROL):
            iproute("ip", "-n", switch, "link", "add", bridge, "type", "bridge")
            iproute("ip", "-n", switch, "link", "set", bridge, "up")
        driver = Node(make("driver"), _join(switch, f"{mark}-driver", CONTROL, 0), "")
        nodes: dict[str, Node] = {}
        for number, name in enumerate(names, 1):
            namespace = make(name)
            control_ip = _join(switch, namespace, CONTROL, number)
            fabric_ip = _join(switch, namespace, FABRIC, number)
            nodes[name] = Node(namespace, control_ip, fabric_ip)
            _shape(switch, f"{FABRIC}{number}", port)
            slower = (egress_bits_per_s or {}).get(name, port.rate_bits_per_s)
            own = replace(port, rate_bits_per_s=slower, limit_bytes=_EGRESS_LIMIT_BYTES)
            _shape(namespace, FABRIC, own)
            _tune_tcp(nodes[name], port)
        yield Fabric(nodes, driver, port)


@functools.cache
def why_not() -> str | None:
    """Why such a fabric cannot be made here, with what would mend it; None where it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found; install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root; run the tests as root"
    try:
        with fabric_of(("probe",), Port(100_000_000)):
            return None
    except Unavailable as error:
        return f"{error.message}; needs CAP_SYS_ADMIN and CAP_NET_ADMIN, and veth, bridge and tbf"


def remains(pid: int) -> list[str]:
    """Namespaces that a process has made and not removed."""
    return [name for name in _present() if name.startswith(f"{_PREFIX}-{pid}-")]


def dropped_packets(fabric: Fabric, name: str) -> int:
    """Packets that the buffer before a node's ingress had no room for, so far."""
    number = list(fabric.nodes).index(name) + 1
    switch = f"{fabric.driver.namespace.removesuffix('driver')}switch"
    text = iproute("tc", "-n", switch, "-s", "qdisc", "show", "dev", f"{FABRIC}{number}")
    return int(text.split("(dropped ")[1].split(",")[0])


def _join(switch: str, namespace: str, bridge: str, number: int) -> str:
    """A veth from the namespace into a bridge; returns the address at the namespace's end."""
    port, address = f"{bridge}{number}", f"{_NETWORKS[bridge]}.{number + 1}"
    near = ("ip", "-n", namespace, "link")
    iproute(*near, "add", bridge, "type", "veth", "peer", "name", port, "netns", switch)
    iproute("ip", "-n", switch, "link", "set", port, "master", bridge, "up")
    iproute("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", bridge)
    iproute(*near, "set", bridge, "up")
    return address


def _shape(namespace: str, device: str, port: Port) -> None:
    largest = str(port.packet_bytes_max)
    iproute("ip", "-n", namespace, "link", "set", device, "gso_max_size", largest)
    shape = ("rate", f"{port.rate_bits_per_s}bit", "burst", f"{port.burst_bytes}b")
    limit = ("limit", f"{port.limit_bytes}b")
    iproute("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *shape, *limit)


def _tune_tcp(node: Node, port: Port) -> None:
    """The same on every machine, whatever its defaults: how losses hurt depends on it."""
    near = ("dev", FABRIC, "scope", "link", "src", node.fabric_ip)
    ways = ("congctl", CONGESTION_CONTROL, "rto_min", f"{port.retransmit_min_ms}ms")
    network = f"{_NETWORKS[FABRIC]}.0/24"
    iproute("ip", "-n", node.namespace, "route", "change", network, *near, *ways)


def _sweep() -> None:
    """Remove what killed processes have left: a namespace's name says who made it."""
    for namespace in _present():
        maker = namespace.split("-")[1]
        if maker.isdigit() and not Path("/proc", maker).exists():
            _remove(namespace)


def _present() -> list[str]:
    try:
        return sorted(path.name for path in _DIRECTORY.iterdir() if _is_ours(path.name))
    except FileNotFoundError:
        return []


def _is_ours(name: str) -> bool:
    return name.startswith(f"{_PREFIX}-") and name.count("-") >= 3


def _remove(namespace: str) -> None:
    """End whoever is inside, and delete it; one that is not there is fine."""
    if not (_DIRECTORY / namespace).exists():
        return
    for pid in iproute("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    iproute("ip", "netns", "delete", namespace)


def iproute(*command: str) -> str:
    """What a command of iproute2 prints.

    Raises:
        Unavailable: NAMESPACE_FAILED, it failed; its own words are in the message.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)}: {error}", reason="NAMESPACE_FAILED") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}", reason="NAMESPACE_FAILED")
    return done.stdout
