"""NUMA: which node of the machine's memory a process is near to, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def numa_node_of_process(nodes: Path = _NODES, cpus: frozenset[int] | None = None) -> int | None:
    """The node that all CPUs this process may run on belong to; None where they span several.

    `cpus` stands for those CPUs. Also None where the system does not say.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
    for entry in sorted(nodes.glob("node[0-9]*")):
        try:
            here = parse_cpu_list((entry / "cpulist").read_text())
        except (OSError, ValueError):
            return None
        if allowed <= here:
            return int(entry.name.removeprefix("node"))
    return None


def parse_cpu_list(text: str) -> frozenset[int]:
    """Numbers of a list such as `0-3,8,10-11` (cpuset(7), list format).

    Raises:
        ValueError: it is none.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
