"""Fleet: the containers of one compose project, from up to nothing left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from worldline.errors import DeadlineExceeded, NotFound, Unavailable

FILE = Path(__file__).with_name("compose.yaml")
NODES = ("node-1", "node-2", "node-3")
_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_COMMAND_S = 60.0
#: Images are there, so containers come up in seconds; they leave within `stop_grace_period`.
_COMPOSE_S = 180.0
_ROUTES = Path("/proc/net/route")
_NET_FIRST = 77


class Fleet:
    """A project of its own, on a free network and a free port of the loopback interface."""

    def __init__(self, image: str) -> None:
        self.project = f"worldline-demo-{os.getpid()}"
        self.net = free_net()
        self.port = _free_port()
        self._compose = compose_command()
        self._env = {
            **os.environ,
            "WORLDLINE_IMAGE": image,
            "WORLDLINE_NET": self.net,
            "WORLDLINE_PORT": str(self.port),
            # Nodes of a machine that is busy with other things are late, and not dead.
            "WORLDLINE_LEASE_MS": os.environ.get("WORLDLINE_LEASE_MS", "10000"),
        }
        self._image = image
        self._pids: set[int] = set()

    @property
    def placement_address(self) -> str:
        """Where a client on this machine finds placement."""
        return f"127.0.0.1:{self.port}"

    async def check(self) -> None:
        """Whether an engine answers and has the image.

        Raises:
            Unavailable, NotFound: with the way out.
        """
        await docker("version", "--format", "{{.Server.Version}}")
        if not await docker("image", "ls", "--quiet", self._image):
            raise NotFound(
                f"the engine has no image {self._image}; make it with `make images`",
                reason="NO_IMAGE",
                field="image",
            )

    async def up(self) -> None:
        """Start everything that does not run."""
        await self._run_compose("up", "--detach")
        self._pids |= await self._running_pids()

    async def stop(self) -> dict[str, int]:
        """Stop everything in order; exit codes by service."""
        await self._run_compose("stop")
        return {name: facts["State"]["ExitCode"] for name, facts in (await self._facts()).items()}

    async def down(self) -> None:
        """Remove containers, networks and volumes, whatever state they are in."""
        await self._run_compose("down", "--volumes", "--remove-orphans")

    async def logs(self) -> str:
        """The last lines of everybody."""
        return await self._run_compose("logs", "--no-color", "--tail", "25")

    async def leftovers(self) -> list[str]:
        """Containers, networks, volumes and processes of the project that there still are."""
        label = f"label={_PROJECT}={self.project}"
        found = []
        for kind, listing in (
            ("container", ("ps", "--all")),
            ("network", ("network", "ls")),
            ("volume", ("volume", "ls")),
        ):
            names = await docker(*listing, "--quiet", "--filter", label)
            found += [f"{kind} {name}" for name in names.split()]
        return found + [f"process {pid}" for pid in sorted(self._pids) if psutil.pid_exists(pid)]

    async def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        labels = (f"label={_PROJECT}={self.project}", f"label={_SERVICE}={service}")
        filters = [word for label in labels for word in ("--filter", label)]
        found = await docker("ps", "--all", "--quiet", "--no-trunc", *filters)
        if not found:
            raise NotFound(f"{self.project} has no container of {service}", field="service")
        return found.split()[0]

    async def execute(self, service: str, *command: str, timeout_s: float = _COMMAND_S) -> str:
        """Run a command in a service's container; its standard output."""
        return await docker("exec", await self.container(service), *command, timeout_s=timeout_s)

    async def shared_memory_bytes(self, node: str) -> int:
        """The size of a node's /dev/shm."""
        return int((await self._facts())[node]["HostConfig"]["ShmSize"])

    async def kill(self, service: str) -> None:
        """`docker kill`: SIGKILL, and no restart."""
        await docker("kill", await self.container(service))

    async def halt(self, service: str) -> None:
        """`docker stop`: SIGTERM, and no restart."""
        await docker("stop", await self.container(service))

    async def start(self, service: str) -> None:
        """`docker start`."""
        await docker("start", await self.container(service))
        self._pids |= await self._running_pids()

    async def disconnect(self, node: str) -> None:
        """Take a node's network interface away, with mover and engine running."""
        await docker("network", "disconnect", self._network, await self.container(node))

    async def connect(self, node: str) -> None:
        """Give it one again, under its own address."""
        address = f"{self.net}.1{NODES.index(node) + 1}"
        names = ("--ip", address, "--alias", node)
        await docker("network", "connect", *names, self._network, await self.container(node))

    @property
    def _network(self) -> str:
        return f"{self.project}_worldline"

    async def _run_compose(self, *arguments: str) -> str:
        command = (*self._compose, "--project-name", self.project, "--file", str(FILE), *arguments)
        return await run(command, self._env, _COMPOSE_S)

    async def _facts(self) -> dict[str, dict[str, Any]]:
        label = f"label={_PROJECT}={self.project}"
        ids = (await docker("ps", "--all", "--quiet", "--filter", label)).split()
        if not ids:
            return {}
        found = json.loads(await docker("inspect", *ids))
        return {facts["Config"]["Labels"][_SERVICE]: facts for facts in found}

    async def _running_pids(self) -> set[int]:
        """As this machine counts them; of an engine elsewhere they mean nothing and are gone."""
        pids = {int(facts["State"]["Pid"]) for facts in (await self._facts()).values()}
        return {pid for pid in pids if pid > 0 and psutil.pid_exists(pid)}


async def docker(*arguments: str, timeout_s: float = _COMMAND_S) -> str:
    """Run the engine's client; what it wrote, without the last line end."""
    return (await run(("docker", *arguments), os.environ, timeout_s)).rstrip("\n")


async def run(command: tuple[str, ...], env: Mapping[str, str], timeout_s: float) -> str:
    """Run a command; its standard output.

    Raises:
        Unavailable: it cannot be run, or failed; its last words are in the message.
        DeadlineExceeded: it did not end in time, and was killed.
    """
    named = " ".join(command[:6])
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(*command, env=env, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise Unavailable(f"{named}: {error}", reason="NO_ENGINE") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate()
    except TimeoutError:
        raise DeadlineExceeded(f"{named} did not end in {timeout_s:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        words = err.decode(errors="replace").strip().splitlines()[-6:]
        raise Unavailable(f"{named}: {' / '.join(words)}", reason="ENGINE_FAILED")
    return out.decode(errors="replace")


def compose_command() -> tuple[str, ...]:
    """Compose v2, or docker-compose 1.29; WORLDLINE_COMPOSE where another is meant.

    Raises:
        Unavailable: there is none.
    """
    named = os.environ.get("WORLDLINE_COMPOSE", "")
    if named:
        return tuple(named.split())
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    if shutil.which("docker"):
        return ("docker", "compose")
    raise Unavailable(
        "neither docker nor docker-compose is found; install Docker Engine and Compose",
        reason="NO_ENGINE",
    )


#: Of the network that is looked for, and of the widest that it must not lie in.
_MASK, _NETWORK_MASK = 0xFFFFFF00, 0xFFFF0000


def free_net() -> str:
    """The first three numbers of a /24 that no route of this machine leads to.

    A route to all of a private range, as of a VPN, is no network of this machine's.
    """
    taken = _ROUTES.read_text() if _ROUTES.exists() else ""
    rows = [line.split() for line in taken.splitlines()[1:] if line.split()]
    # As the kernel prints them: hexadecimal, the last byte first.
    routes = [(int(_turned(row[1]), 16), int(_turned(row[7]), 16)) for row in rows]
    for third in range(_NET_FIRST, 256):
        first = int.from_bytes((172, 30, third, 0))
        if not any(
            mask >= _NETWORK_MASK and not (first ^ at) & mask & _MASK for at, mask in routes
        ):
            return f"172.30.{third}"
    raise Unavailable("every network of 172.30.77.0 to 172.30.255.0 is taken", reason="NO_NETWORK")


def _turned(word: str) -> str:
    return bytes.fromhex(word)[::-1].hex()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def digits(text: str) -> int:
    """The number in a line that holds nothing else."""
    match = re.fullmatch(r"\s*(\d+)\s*", text)
    if match is None:
        raise Unavailable(f"not a number: {text!r}", reason="ENGINE_FAILED")
    return int(match[1])
