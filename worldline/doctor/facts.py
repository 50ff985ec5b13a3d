"""Facts: what one process finds around itself; nothing in here is an opinion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Services, and the command line's own process.
MOVER, ENGINE, PLACEMENT, ADMISSION, HERE = "mover", "engine", "placement", "admission", "here"
#: Where shared-memory lanes have their segments; nobody here writes a file of its own there.
DEV_SHM = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface; a speed of 0 is one that its driver does not say."""

    name: str
    up: bool
    speed_mbit_per_s: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that the process uses. PCI Express as it is now and at most, 0 where unknown."""

    name: str
    model: str = ""
    uuid: str = ""
    numa_node: int | None = None
    nvlink_peers: tuple[str, ...] = ()
    pcie_generation: int = 0
    pcie_generation_max: int = 0
    pcie_lanes: int = 0
    pcie_lanes_max: int = 0


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process. None: unlimited for limits, absent or unknown for the rest.

    Namespaces are inode numbers of /proc/self/ns, 0 where unknown. `environment` has the variables
    of UCX, torch and CUDA alone. `lanes_here` are UCX's transports and devices on this machine,
    `lanes_left` those that its variables leave; both empty where UCX was not asked.
    """

    service: str
    instance: str = ""
    node_id: str = ""
    pid: int = 0
    uid: int = 0
    boot_id: str = ""
    ipc_namespace: int = 0
    pid_namespace: int = 0
    net_namespace: int = 0
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    shared_memory_total_bytes: int | None = None
    shared_memory_free_bytes: int | None = None
    memlock_max_bytes: int | None = None
    open_files_max: int | None = None
    pids_max: int | None = None
    pids_used: int = 0
    huge_pages_total: int = 0
    huge_pages_free: int = 0
    shared_memory_may_be_huge: bool = False
    cpu_count: int = 1
    #: That it may run on, as `0-3,8`; empty where unknown.
    cpus: str = ""
    numa_node: int | None = None
    numa_node_count: int = 1
    ptrace_scope: int | None = None
    may_ptrace: bool = False
    interfaces: tuple[Interface, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[str, ...] = ()
    lanes_here: tuple[str, ...] = ()
    lanes_left: tuple[str, ...] = ()
    fingerprint: str = ""
    #: Of engines: by preset, where two runs of it parted; empty where they were equal.
    self_checks: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def subject(self) -> str:
        """What findings call it: `mover node-1`."""
        return f"{self.service} {self.instance}".rstrip()

    @property
    def uses_gpu(self) -> bool:
        """Whether it was told to use a GPU."""
        return any(name.startswith("cuda") for name in self.devices)
