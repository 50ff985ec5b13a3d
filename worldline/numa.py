"""NUMA: which CPUs are near to which memory, as Linux tells it, and where a process may run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worldline.errors import Unavailable
from worldline.fields import whole

#: Where Linux tells of NUMA nodes.
NODES = Path("/sys/devices/system/node")
_THREADS = Path("/proc/self/task")

#: Highest numbers that are taken for a CPU's or a NUMA node's; the kernel's own limits are lower.
CPU_MAX = 65_535
NUMA_NODE_MAX = 1_023


@dataclass(frozen=True, slots=True)
class Binding:
    """The CPUs that a process may run on, and the NUMA node that all of them belong to.

    `numa_node` is None where they span several, or where the machine does not say.

    Raises:
        InvalidInput: a number out of range; `field` is `binding.<name>`.
    """

    cpus: frozenset[int]
    numa_node: int | None = None

    def __post_init__(self) -> None:
        for cpu in self.cpus:
            whole(cpu, "binding.cpus", at_most=CPU_MAX)
        if self.numa_node is not None:
            whole(self.numa_node, "binding.numa_node", at_most=NUMA_NODE_MAX)

    def __str__(self) -> str:
        where = "" if self.numa_node is None else f", NUMA node {self.numa_node}"
        return f"CPUs {format_cpu_list(self.cpus) or 'none'}{where}"


def binding_of_process(nodes: Path = NODES, cpus: frozenset[int] | None = None) -> Binding:
    """Where this process may run now; `cpus` stands for what the kernel would say."""
    allowed = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
    return Binding(allowed, numa_node_of(allowed, cpus_by_node(nodes)))


def bind_process(cpus: frozenset[int]) -> None:
    """Let every thread of this process run there alone; threads to come inherit it.

    Raises:
        Unavailable: the kernel refused; `field` is `cores`.
    """
    for entry in _THREADS.iterdir():
        try:
            os.sched_setaffinity(int(entry.name), cpus)
        except ProcessLookupError:
            continue  # it has ended since
        except OSError as error:
            raise Unavailable(
                f"threads cannot be bound to CPUs {format_cpu_list(cpus)}: {error.strerror}",
                reason="BIND_REFUSED",
                field="cores",
            ) from error


def numa_node_of_process(nodes: Path = NODES, cpus: frozenset[int] | None = None) -> int | None:
    """The node that all CPUs this process may run on belong to; None where they span several.

    `cpus` stands for those CPUs. Also None where the system does not say.
    """
    return binding_of_process(nodes, cpus).numa_node


def numa_node_of(cpus: frozenset[int], nodes: Mapping[int, frozenset[int]]) -> int | None:
    """The node that all of them belong to; None where there is none."""
    return next((node for node, here in sorted(nodes.items()) if cpus and cpus <= here), None)


def cpus_by_node(nodes: Path = NODES) -> dict[int, frozenset[int]]:
    """The CPUs of every NUMA node that has any; empty where the system does not say."""
    try:
        found = {
            int(entry.name.removeprefix("node")): parse_cpu_list((entry / "cpulist").read_text())
            for entry in nodes.glob("node[0-9]*")
        }
    except (OSError, ValueError):
        return {}
    return {node: cpus for node, cpus in found.items() if cpus}


def parse_cpu_list(text: str) -> frozenset[int]:
    """Numbers of a list such as `0-3,8,10-11` (cpuset(7), list format); none of an empty one.

    Raises:
        ValueError: it is none.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low, high = _cpu(first), _cpu(last if dash else first)
        if high < low:
            raise ValueError(f"{part!r} goes down")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: frozenset[int]) -> str:
    """The shortest such list; `parse_cpu_list` gives the same numbers back."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)


def _cpu(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > CPU_MAX:
        raise ValueError(f"{text!r} is no CPU's number from 0 to {CPU_MAX}")
    return int(text)
