"""Lane check: what carries bytes between two nodes, and how fast it was measured to be. Pure.

Fault 32: a lane that UCX fell back to moves the right bytes at a hundredth of the rate (nixl#1754).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from worldline.doctor.devicecheck import bus_rate_bytes_per_s
from worldline.doctor.facts import ProcessFacts
from worldline.doctor.finding import Finding, Severity
from worldline.doctor.ucxvariables import is_network

#: A path of this part of its peers' rate is slow. Two runs on one busy machine differ by half.
SLOW_PART = 1 / 3
#: The same of what its link is said to carry; a single TCP stream fills a third of a fast one.
LINK_PART = 1 / 10
_STAGED = "staged/pinned"


@dataclass(frozen=True, slots=True)
class Push:
    """One push of a measurement."""

    size_bytes: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Path:
    """What was measured from one node to another; no pushes where it could not be.

    `refused` says why not, or why no more: somebody else was using the wire.
    """

    source_node_id: str
    target_node_id: str
    lanes: tuple[str, ...] = ()
    pushes: tuple[Push, ...] = ()
    refused: str = ""
    #: Why not, where it was tried and did not work: no lane, nobody there, out of time.
    failed: str = ""
    source_device: str = ""
    target_device: str = ""

    @property
    def name(self) -> str:
        """What findings call it."""
        return f"{self.source_node_id} to {self.target_node_id}"

    @property
    def rate_bytes_per_s(self) -> float:
        """Of the best of the largest pushes, verification off; 0 where none was timed.

        What every push pays is taken off where it is the smaller part; where it is not, this is the
        least that the lane carries.
        """
        size_bytes = max((push.size_bytes for push in self.pushes), default=0)
        duration_ms = self._shortest_ms(size_bytes)
        latency_ms = self.latency_ms
        if duration_ms >= 2 * latency_ms:
            size_bytes -= min(push.size_bytes for push in self.pushes) if self.pushes else 0
            duration_ms -= latency_ms
        return size_bytes / duration_ms * 1e3 if duration_ms > 0 else 0.0

    @property
    def latency_ms(self) -> float:
        """Of the quickest of the smallest pushes: what a push pays besides its bytes."""
        return self._shortest_ms(min((push.size_bytes for push in self.pushes), default=0))

    def _shortest_ms(self, size_bytes: int) -> float:
        times = [push.duration_ms for push in self.pushes if push.size_bytes == size_bytes]
        return min(times, default=0.0)

    @property
    def kind(self) -> tuple[str, ...]:
        """What makes two paths comparable: transports without devices, and where bytes rest."""
        transports = sorted({lane.partition("/")[0] for lane in self.lanes})
        return (*transports, *(name.partition(":")[0] for name in self._devices))

    @property
    def _devices(self) -> tuple[str, str]:
        return self.source_device, self.target_device


def check_paths(paths: Iterable[Path], movers: Iterable[ProcessFacts]) -> tuple[Finding, ...]:
    """Every path against its peers, and against what its ends could do."""
    measured = [path for path in paths if path.pushes]
    by_node = {mover.node_id: mover for mover in movers}
    found: list[Finding] = []
    for path in measured:
        ends = by_node.get(path.source_node_id), by_node.get(path.target_node_id)
        found += _slow(path, measured)
        if ends[0] is not None and ends[1] is not None:
            found += _fallen_back(path, ends[0], ends[1])
            found += _below_link(path, ends[0], ends[1])
    return tuple(found)


def _slow(path: Path, measured: list[Path]) -> Iterator[Finding]:
    peers = [
        other.rate_bytes_per_s
        for other in measured
        if other is not path and other.kind == path.kind and other.rate_bytes_per_s > 0
    ]
    if not peers or path.rate_bytes_per_s >= median(peers) * SLOW_PART:
        return
    device = _device(path)
    severity = Severity.WARNING
    remedy = f"ethtool {device}    # speed, errors, drops of the link; tc -s qdisc: its shaping"
    if not device:
        # Through memory: whoever has the cores at the moment decides as much as the path does.
        severity = Severity.INFO
        remedy = "worldline doctor --only lanes    # again, idle; uptime, numastat -p, nvidia-smi"
    yield Finding(
        severity,
        "LANE_SLOW",
        path.name,
        f"{', '.join(path.lanes)} carries {human_rate(path.rate_bytes_per_s)}, the paths like it "
        f"{human_rate(median(peers))}",
        "moves on it take that much longer, and admission, which measured it too, lets fewer pass",
        remedy,
        device,
    )


def _fallen_back(path: Path, source: ProcessFacts, target: ProcessFacts) -> Iterator[Finding]:
    network = [lane for lane in path.lanes if is_network(lane) and "/" in lane]
    local = [lane for lane in path.lanes if lane not in network and lane != _STAGED]
    one_machine = bool(source.boot_id) and source.boot_id == target.boot_id
    if one_machine and network and not local:
        yield Finding(
            Severity.WARNING,
            "LANE_FALLBACK",
            path.name,
            f"both ends are on one machine, and bytes go by {', '.join(network)}",
            "shared memory is several times as fast, and costs the network nothing",
            "worldline doctor --only processes,ucx,memory    # names what keeps them apart",
            ", ".join(network),
        )
    tcp_only = bool(network) and all(lane.startswith("tcp/") for lane in network) and not local
    if not one_machine and tcp_only and source.rdma_devices and target.rdma_devices:
        yield Finding(
            Severity.WARNING,
            "LANE_FALLBACK",
            path.name,
            f"both ends have RDMA ({source.rdma_devices[0]}, {target.rdma_devices[0]}), and bytes "
            f"go by {', '.join(network)}",
            "TCP carries a fraction of that rate and takes a core at each end",
            "unset UCX_TLS UCX_NET_DEVICES    # and give both containers /dev/infiniband",
            ", ".join(network),
        )
    if _STAGED in path.lanes and one_machine and source.uses_gpu and target.uses_gpu:
        yield Finding(
            Severity.WARNING,
            "LANE_STAGED",
            path.name,
            "both GPUs are on one machine, and bytes go through pinned host memory",
            "CUDA IPC carries them ten times as fast where the two processes may use it",
            "docker run --ipc=host --pid=host --gpus all ...    # on both; unset UCX_TLS",
            _STAGED,
        )


def _below_link(path: Path, source: ProcessFacts, target: ProcessFacts) -> Iterator[Finding]:
    link = link_bytes_per_s(path, source, target)
    rate = path.rate_bytes_per_s
    if not link or rate >= link * LINK_PART:
        return
    device = _device(path)
    yield Finding(
        Severity.WARNING,
        "LANE_BELOW_LINK",
        path.name,
        f"{', '.join(path.lanes)} carries {human_rate(rate)} of a link of {human_rate(link)}",
        "something on the way is slower than the link",
        f"ethtool {device}    # and ip -s link: errors, drops, MTU",
        device,
    )


def link_bytes_per_s(path: Path, source: ProcessFacts, target: ProcessFacts) -> float:
    """What the slowest link on the way carries, as drivers and NVML say; 0 where none says.

    A network's interface where bytes leave the machine, and a GPU's bus where its bytes go through
    host memory. The rates of shared memory and of NVLink are nobody's to say.
    """
    links = []
    if source.boot_id != target.boot_id:
        speeds = {one.name: one.speed_mbit_per_s for one in source.interfaces}
        devices = (lane.partition("/")[2] for lane in path.lanes if is_network(lane))
        links.append(max((speeds.get(device, 0) for device in devices), default=0) * 1e6 / 8)
    if _STAGED in path.lanes:
        ends = (source, path.source_device), (target, path.target_device)
        links += [
            bus_rate_bytes_per_s(gpu)
            for facts, name in ends
            for gpu in facts.gpus
            if gpu.name == name
        ]
    return min((link for link in links if link > 0), default=0.0)


def _device(path: Path) -> str:
    devices = [lane.partition("/")[2] for lane in path.lanes if is_network(lane)]
    return devices[0] if devices else ""


def human_rate(rate_bytes_per_s: float) -> str:
    """1.67 GB/s and the like; decimal."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6)):
        if rate_bytes_per_s >= factor:
            return f"{rate_bytes_per_s / factor:.2f} {unit}"
    return f"{rate_bytes_per_s / 1e3:.1f} kB/s"
