"""Facts from a made-up machine, and from this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worldline.doctor.facts import Interface
from worldline.doctor.reading import read_facts, shared_memory_bytes

FILES = {
    "proc/sys/kernel/random/boot_id": "0000-boot\n",
    "proc/sys/kernel/yama/ptrace_scope": "2\n",
    "proc/self/status": "Name:\tx\nCapEff:\t0000000000080000\n",
    "proc/self/cgroup": "0::/pod\n",
    "sys/fs/cgroup/pod/pids.max": "512\n",
    "sys/fs/cgroup/pod/pids.current": "40\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "128\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "100\n",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never\n",
    "sys/devices/system/node/node0/cpulist": "0-4095\n",
    "sys/devices/system/node/node1/cpulist": "4096-8191\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "100000\n",
    "sys/class/net/eth1/operstate": "down\n",
    "sys/class/net/eth1/speed": "-1\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "dev/shm/something": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_file_is_read(root: Path) -> None:
    facts = read_facts("mover", "node-1", root=root, environment={})
    assert facts.boot_id == "0000-boot"
    assert (facts.ptrace_scope, facts.may_ptrace) == (2, True)
    assert (facts.pids_max, facts.pids_used) == (512, 40)
    assert (facts.huge_pages_total, facts.huge_pages_free) == (128, 100)
    assert facts.shared_memory_may_be_huge
    assert (facts.numa_node, facts.numa_node_count) == (0, 2)
    assert facts.interfaces == (Interface("eth0", True, 100_000), Interface("eth1", False, 0))
    assert facts.rdma_devices == ("mlx5_0:1",)
    assert facts.shared_memory_total_bytes


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    facts = read_facts("mover", root=tmp_path, environment={})
    assert (facts.boot_id, facts.ipc_namespace, facts.ptrace_scope) == ("", 0, None)
    assert (facts.shared_memory_total_bytes, facts.pids_max) == (None, None)
    assert (facts.numa_node, facts.numa_node_count) == (None, 1)
    assert (facts.interfaces, facts.rdma_devices) == ((), ())


@pytest.mark.parametrize("text", ["max\n", "garbage", ""])
def test_no_number_is_no_limit(root: Path, text: str) -> None:
    (root / "sys/fs/cgroup/pod/pids.max").write_text(text)
    assert read_facts("mover", root=root, environment={}).pids_max is None


def test_only_variables_that_decide_lanes_and_memory_are_told() -> None:
    told = {"UCX_TLS": "tcp", "PYTORCH_CUDA_ALLOC_CONF": "x:y", "CUDA_VISIBLE_DEVICES": "0"}
    secret = {"AWS_SECRET_ACCESS_KEY": "s", "HOME": "/root", "MY_UCX_TLS": "rc"}
    assert read_facts("mover", environment={**told, **secret}).environment == told


def test_this_process() -> None:
    facts = read_facts("mover", environment={})
    assert (facts.pid, facts.uid) == (os.getpid(), os.geteuid())
    assert facts.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert facts.cpu_count == len(os.sched_getaffinity(0))
    assert {"worldline", "protocol", "granule_bytes", "libucx-cu13"} <= facts.versions.keys()
    assert facts.subject == "mover"


def test_a_place_that_is_none(tmp_path: Path) -> None:
    assert shared_memory_bytes(tmp_path / "missing") == (None, None)
    total, free = shared_memory_bytes(tmp_path)
    assert total is not None
    assert free is not None
    assert free <= total
