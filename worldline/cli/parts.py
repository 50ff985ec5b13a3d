"""Parts of a local cluster: its options, and the child process that each part becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worldline.cli.process import ServiceSpec
from worldline.devicename import CPU, device_name
from worldline.errors import InvalidInput
from worldline.fields import positive, whole
from worldline.numa import format_cpu_list

NODES_MAX = 64


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parts that run already are; host:port each, empty while unknown."""

    placement: str = ""
    admission: str = ""
    mover: str = ""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What differs for one node. Entries are `module:function`; variables are settings by name.

    Tests put a mover with a fault in place of the real one through `mover_entry`.
    """

    mover_entry: str = "services.mover.launch:main"
    engine_entry: str = "services.engine.main:main"
    mover_variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    engine_variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    env: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a cluster is made of.

    Nodes get the `devices` in turn (`cpu`, `cuda:0` and so on): slots and engine of a node are on
    one device.

    `slot_bytes` is the size of each of the `slots` slots of a node; `threads` the compute threads
    of each engine, `cores` the CPUs of each node's, empty where none has its own; `port` is
    placement's on the loopback interface, 0 for a free one; `models` are those of other packages
    that every engine serves, each `module:attribute`; with `metrics` every service answers
    Prometheus, there too, on a free port of its own;
    `node_options` is by node id (`node-1` and so on).

    Raises:
        InvalidInput: a number out of range, with its field.
    """

    nodes: int = 2
    slots: int = 4
    slot_bytes: int = 64 << 20
    threads: int = 1
    cores: tuple[frozenset[int], ...] = ()
    devices: tuple[str, ...] = (CPU,)
    models: tuple[str, ...] = ()
    port: int = 0
    log_format: str = "console"
    log_level: str = "info"
    metrics: bool = False
    start_timeout_s: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    admission_entry: str = "services.admission.main:main"
    placement_entry: str = "services.placement.main:main"
    admission_variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    placement_variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    node_options: Mapping[str, NodeOptions] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        whole(self.nodes, "nodes", at_most=NODES_MAX)
        whole(self.slots, "slots", at_least=1, at_most=1_024)
        whole(self.slot_bytes, "slot_bytes", at_least=1 << 20)
        whole(self.threads, "threads", at_least=1, at_most=1_024)
        whole(self.port, "port", at_most=65_535)
        if self.cores and len(self.cores) != self.nodes:
            raise InvalidInput(
                f"{len(self.cores)} sets of cores are given for {self.nodes} nodes", field="cores"
            )
        if not self.devices:
            raise InvalidInput("a cluster without devices computes nothing", field="devices")
        if len(self.devices) > max(1, self.nodes):
            raise InvalidInput(
                f"{len(self.devices)} devices are named for {self.nodes} nodes: a node has one; "
                "name fewer, or start more nodes",
                field="devices",
            )
        names = tuple(device_name(text, "devices") for text in self.devices)
        object.__setattr__(self, "devices", names)
        positive(self.start_timeout_s, "start_timeout_s")

    def admission_spec(self, addresses: Addresses) -> ServiceSpec:
        """Admission; its spans go to where placement will be."""
        return ServiceSpec(
            name="admission",
            service="admission",
            entry=self.admission_entry,
            variables={**self._common(addresses.placement), **self.admission_variables},
            env=self.env,
        )

    def placement_spec(self, addresses: Addresses, work_path: Path) -> ServiceSpec:
        """Placement at its chosen address, its directory below `work_path`."""
        variables = {
            **self._common(""),
            "listen": addresses.placement,
            "admission_address": addresses.admission,
            "directory_path": str(work_path / "directory.sqlite"),
            **self.placement_variables,
        }
        return ServiceSpec(
            name="placement",
            service="placement",
            entry=self.placement_entry,
            variables=variables,
            env=self.env,
        )

    def device_of(self, node_id: str) -> str:
        """Where the node's slots and its engine are; nodes are `node-1` and so on."""
        number = int(node_id.rpartition("-")[2])
        return self.devices[(number - 1) % len(self.devices)]

    def cores_of(self, node_id: str) -> Mapping[str, str]:
        """The setting that gives the node's engine cores of its own; none where it has none."""
        number = int(node_id.rpartition("-")[2])
        return {"cores": format_cpu_list(self.cores[number - 1])} if self.cores else {}

    def mover_spec(self, addresses: Addresses, node_id: str, runtime_path: Path) -> ServiceSpec:
        """The node's mover, its sockets in `runtime_path`."""
        options = self.node_options.get(node_id, NodeOptions())
        variables = {
            **self._common(addresses.placement),
            "node_id": node_id,
            "placement_address": addresses.placement,
            "admission_address": addresses.admission,
            "devices": self.device_of(node_id),
            "slot_count": str(self.slots),
            "slot_bytes": str(self.slot_bytes),
            "runtime_dir": str(runtime_path),
            "park_dir": str(runtime_path / "parked"),
            **options.mover_variables,
        }
        return ServiceSpec(
            name=f"mover-{node_id}",
            service="mover",
            entry=options.mover_entry,
            variables=variables,
            env={**self.env, **options.env},
        )

    def engine_spec(self, addresses: Addresses, node_id: str) -> ServiceSpec:
        """The node's engine, on the node's mover."""
        device = self.device_of(node_id)
        options = self.node_options.get(node_id, NodeOptions())
        variables = {
            **self._common(addresses.placement),
            "node_id": node_id,
            "engine_id": f"{node_id}-{device.replace(':', '')}",
            "device": device,
            "threads": str(self.threads),
            **self.cores_of(node_id),
            "models": ",".join(self.models),
            "placement_address": addresses.placement,
            "mover_address": addresses.mover,
            **options.engine_variables,
        }
        return ServiceSpec(
            name=f"engine-{node_id}",
            service="engine",
            entry=options.engine_entry,
            variables=variables,
            env={**self.env, **options.env},
        )

    def _common(self, trace_store: str) -> dict[str, str]:
        return {
            "listen": "127.0.0.1:0",
            "trace_store": trace_store,
            "log_format": self.log_format,
            "log_level": self.log_level,
            **({"metrics_listen": "127.0.0.1:0"} if self.metrics else {}),
        }
