"""Reading: this process's facts, from /proc, /sys and its environment. Judges nothing."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from worldline.doctor.facts import DEV_SHM, Interface, ProcessFacts
from worldline.numa import binding_of_process, format_cpu_list
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.state.digest import GRANULE_BYTES

#: What decides lanes and memory; anything else in an environment is nobody's business.
_VARIABLES = re.compile(
    r"(UCX_\w+|UCXPY_\w+|PYTORCH_(CUDA_)?ALLOC_CONF|CUDA_VISIBLE_DEVICES|CUDA_MODULE_LOADING)"
)
_PACKAGES = ("worldline", "torch", "grpcio", "ucxx-cu13", "libucx-cu13", "protobuf")
#: capability.h
_CAP_SYS_PTRACE = 19
_HUGE_PAGES = Path("sys/kernel/mm/hugepages/hugepages-2048kB")
_SHMEM_ENABLED = Path("sys/kernel/mm/transparent_hugepage/shmem_enabled")


def read_facts(
    service: str,
    instance: str = "",
    node_id: str = "",
    *,
    devices: Iterable[str] = (),
    settings: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
) -> ProcessFacts:
    """What this process finds. Takes a few milliseconds, and never fails for what is not there.

    `root` is where proc, sys and dev lie.
    """
    total_bytes, free_bytes = shared_memory_bytes(root / DEV_SHM.lstrip("/"))
    pids_max, pids_used = _pids(root)
    binding = binding_of_process(root / "sys/devices/system/node")
    return ProcessFacts(
        service=service,
        instance=instance,
        node_id=node_id,
        pid=os.getpid(),
        uid=os.geteuid(),
        boot_id=_text(root / "proc/sys/kernel/random/boot_id"),
        ipc_namespace=_namespace(root, "ipc"),
        pid_namespace=_namespace(root, "pid"),
        net_namespace=_namespace(root, "net"),
        versions=dict(_versions()),
        environment=read_variables(environment),
        settings=dict(settings or {}),
        shared_memory_total_bytes=total_bytes,
        shared_memory_free_bytes=free_bytes,
        memlock_max_bytes=_limit(resource.RLIMIT_MEMLOCK),
        open_files_max=_limit(resource.RLIMIT_NOFILE),
        pids_max=pids_max,
        pids_used=pids_used,
        huge_pages_total=_number(root / _HUGE_PAGES / "nr_hugepages") or 0,
        huge_pages_free=_number(root / _HUGE_PAGES / "free_hugepages") or 0,
        shared_memory_may_be_huge=_may_be_huge(_text(root / _SHMEM_ENABLED)),
        cpu_count=len(binding.cpus),
        cpus=format_cpu_list(binding.cpus),
        numa_node=binding.numa_node,
        numa_node_count=len([*(root / "sys/devices/system/node").glob("node[0-9]*")]) or 1,
        ptrace_scope=_number(root / "proc/sys/kernel/yama/ptrace_scope"),
        may_ptrace=_has_capability(_text(root / "proc/self/status"), _CAP_SYS_PTRACE),
        interfaces=_interfaces(root / "sys/class/net"),
        rdma_devices=_rdma_devices(root / "sys/class/infiniband"),
        devices=tuple(devices),
    )


def read_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those that decide lanes and memory, of an environment or of this process's."""
    variables = os.environ if environment is None else environment
    return {name: variables[name] for name in sorted(variables) if _VARIABLES.fullmatch(name)}


def shared_memory_bytes(path: Path = Path(DEV_SHM)) -> tuple[int | None, int | None]:
    """Size of the file system at that path and what is free of it; None where there is none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


@cache
def _versions() -> Mapping[str, str]:
    found = {
        "protocol": str(PROTOCOL_VERSION),
        "granule_bytes": str(GRANULE_BYTES),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() else None


def _namespace(root: Path, kind: str) -> int:
    try:
        return os.stat(root / "proc/self/ns" / kind).st_ino
    except OSError:
        return 0


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _pids(root: Path) -> tuple[int | None, int]:
    """The control group's limit and count of processes and threads, version 2 or 1 of them."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        base = {"": "sys/fs/cgroup", "pids": "sys/fs/cgroup/pids"}.get(controllers)
        if base is None:
            continue
        # Inside a container the group's own path may not be there: it is the root then.
        for place in (root / base / group.lstrip("/"), root / base):
            if (place / "pids.max").exists():
                used = _number(place / "pids.current") or 0
                return _number(place / "pids.max"), used
    return None, 0


def _may_be_huge(text: str) -> bool:
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen is not None and chosen[1] in ("always", "within_size", "advise", "force")


def _has_capability(status: str, number: int) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def _interfaces(directory: Path) -> tuple[Interface, ...]:
    try:
        names = sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
    except OSError:
        return ()
    return tuple(
        Interface(
            name,
            _text(directory / name / "operstate") in ("up", "unknown"),
            _number(directory / name / "speed") or 0,
        )
        for name in names
    )


def _rdma_devices(directory: Path) -> tuple[str, ...]:
    """Devices with an active port, in UCX's words: `mlx5_0:1`."""
    found = []
    for state in sorted(directory.glob("*/ports/*/state")):
        if "ACTIVE" in _text(state):
            found.append(f"{state.parents[2].name}:{state.parent.name}")
    return tuple(found)
