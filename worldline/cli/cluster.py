"""Local cluster: admission, placement and N nodes as child processes of this one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from worldline.cli.parts import Addresses, ClusterOptions
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.cli.rundir import ClusterFile, RunDir
from worldline.errors import NotFound, Unavailable, WorldlineError

#: Services give calls in flight 2 s and telemetry 1.5 s; what takes much longer, on a machine with
#: much else to do, is stuck.
STOP_S = 20.0
#: After a failed start nobody is served: all at once, and soon.
ABORT_S = 3.0
_PORT_ATTEMPTS = 3


@dataclass(slots=True)
class NodeHandle:
    """The two processes of one node."""

    node_id: str
    mover: ServiceProcess
    engine: ServiceProcess


OnEvent = Callable[[str], None]


class LocalCluster:
    """An async context manager; `start` and `stop` may be called instead.

    Children die with this process, live in process groups of their own, and listen on free ports
    of the loopback interface. With `keep_logs` the logs of a cluster one of whose children died
    by itself outlive it, in `kept_log_path`.
    """

    def __init__(
        self,
        options: ClusterOptions | None = None,
        *,
        run_dir: Path | None = None,
        on_event: OnEvent | None = None,
        keep_logs: bool = False,
    ) -> None:
        self.options = options or ClusterOptions()
        #: Running and ended children by name: admission, placement, mover-node-1, engine-node-1.
        self.services: dict[str, ServiceProcess] = {}
        self.nodes: dict[str, NodeHandle] = {}
        #: Where the logs are after the end; None where nobody needs them.
        self.kept_log_path: Path | None = None
        self._keep_logs = keep_logs
        self._run_dir_wanted = run_dir
        self._run_dir: RunDir | None = None
        self._on_event = on_event or (lambda _text: None)

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def placement_address(self) -> str:
        """host:port of placement: what a `Client` needs."""
        return self.services["placement"].address

    @property
    def admission_address(self) -> str:
        """host:port of admission."""
        return self.services["admission"].address

    @property
    def path(self) -> Path:
        """The run directory, logs below it."""
        return self._dir().path

    async def start(self) -> None:
        """Start everything and wait until it serves.

        Raises:
            Unavailable: a service did not start; all others were stopped. Its last lines are in
                the message.
            Conflict: another cluster runs in the directory.
        """
        self._run_dir = RunDir.acquire(self._run_dir_wanted)
        try:
            async with asyncio.timeout(self.options.start_timeout_s + ABORT_S):
                await self._start_control_plane()
                await self._start_nodes()
            self._dir().publish(
                ClusterFile(
                    pid=os.getpid(),
                    placement_address=self.placement_address,
                    admission_address=self.admission_address,
                    nodes=tuple(self.nodes),
                )
            )
        except BaseException:
            await self._abort()
            raise

    async def stop(self) -> list[str]:
        """Stop clients before the services they use; returns the names of those killed."""
        died, killed = self._any_died(), list[str]()
        for kinds in (("engine",), ("mover",), ("placement",), ("admission",)):
            stage = [each for each in self.services.values() if each.spec.service in kinds]
            self._say(stage, "stopping")
            ended = await asyncio.gather(*(each.stop(STOP_S) for each in stage))
            killed += [each.name for each, clean in zip(stage, ended, strict=True) if not clean]
        self._release(needs_logs=died or bool(killed))
        return killed

    async def start_service(self, spec: ServiceSpec) -> ServiceProcess:
        """Start one child and wait until it serves; a former one of the name must have ended."""
        child = await ServiceProcess.start(spec, self._dir().log_path / f"{spec.name}.log")
        former = self.services.get(spec.name)
        if former is not None:
            former.close()
        self.services[spec.name] = child
        self._on_event(f"{spec.name} starting (pid {child.pid})")
        address = await child.ready(self.options.start_timeout_s)
        self._on_event(f"{spec.name} ready at {address}")
        return child

    async def restart(self, name: str) -> ServiceProcess:
        """Start a child that has ended again, as it was and at the same address."""
        former = self._child(name)
        variables = {**former.spec.variables, "listen": former.address}
        child = await self.start_service(replace(former.spec, variables=variables))
        for node in self.nodes.values():
            if name == f"mover-{node.node_id}":
                node.mover = child
            if name == f"engine-{node.node_id}":
                node.engine = child
        return child

    async def kill(self, name: str) -> None:
        """SIGKILL one child by name and wait until it is gone."""
        await self._child(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send any signal to one child by name."""
        self._child(name).signal(number)

    async def wait_any(self) -> ServiceProcess:
        """Until one of the running children ends; returns it."""
        running = [each for each in self.services.values() if each.running]
        waits = {asyncio.ensure_future(each.wait()): each for each in running}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[next(iter(done))]
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _start_control_plane(self) -> None:
        # Admission sends its spans to placement and placement asks admission: one of the two
        # addresses must be known before its owner runs. Between choosing a free port and binding
        # it somebody else may take it; then another is tried. A port that was asked for is not
        # exchanged for another.
        attempts = 1 if self.options.port else _PORT_ATTEMPTS
        for attempt in range(1, attempts + 1):
            addresses = Addresses(placement=f"127.0.0.1:{self.options.port or _free_port()}")
            admission = await self.start_service(self.options.admission_spec(addresses))
            addresses = replace(addresses, admission=admission.address)
            spec = self.options.placement_spec(addresses, self._dir().work_path)
            try:
                await self.start_service(spec)
            except WorldlineError as error:
                if "LISTEN_FAILED" not in error.message:
                    raise
                if self.options.port:
                    self.services.pop("placement").close()  # no mystery: its log is not needed
                    raise _port_taken(self.options.port) from error
                if attempt == attempts:
                    raise
                await admission.stop(ABORT_S)
            else:
                return

    async def _start_nodes(self) -> None:
        names = [f"node-{number}" for number in range(1, self.options.nodes + 1)]
        await _all_or_first_error(self._start_node(name) for name in names)
        self.nodes = {name: self.nodes[name] for name in names}

    async def _start_node(self, node_id: str) -> None:
        addresses = Addresses(self.placement_address, self.admission_address)
        runtime_path = self._dir().work_path / node_id
        runtime_path.mkdir(mode=0o700, exist_ok=True)
        mover = await self.start_service(self.options.mover_spec(addresses, node_id, runtime_path))
        addresses = replace(addresses, mover=mover.address)
        engine = await self.start_service(self.options.engine_spec(addresses, node_id))
        self.nodes[node_id] = NodeHandle(node_id, mover, engine)

    async def _abort(self) -> None:
        died = self._any_died()
        await asyncio.gather(*(each.stop(ABORT_S) for each in self.services.values()))
        self._release(needs_logs=died)

    def _any_died(self) -> bool:
        """A child ended with another status than 0, and not because it was told to."""
        return any(each.status not in (None, 0) for each in self.services.values())

    def _release(self, *, needs_logs: bool) -> None:
        for each in self.services.values():
            each.close()
        if self._run_dir is None:
            return
        if needs_logs and self._keep_logs and self.kept_log_path is None:
            self.kept_log_path = self._run_dir.keep_logs()
        self._run_dir.release()

    def _dir(self) -> RunDir:
        if self._run_dir is None:
            raise NotFound("the cluster was not started", reason="NOT_STARTED")
        return self._run_dir

    def _child(self, name: str) -> ServiceProcess:
        child = self.services.get(name)
        if child is None:
            known = ", ".join(sorted(self.services)) or "none"
            raise NotFound(f"no process {name!r}; there are: {known}", field="name")
        return child

    def _say(self, stage: Iterable[ServiceProcess], what: str) -> None:
        for each in stage:
            if each.running:
                self._on_event(f"{each.name} {what}")


async def _all_or_first_error(work: Iterable[Coroutine[object, object, None]]) -> None:
    """Run all at once; the first error cancels the others and comes out as itself."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _port_taken(port: int) -> Unavailable:
    return Unavailable(
        f"port {port} is taken, perhaps by another `worldline up`; stop that or choose another "
        "with --port N (0: a free one)",
        reason="PORT_TAKEN",
        field="port",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
