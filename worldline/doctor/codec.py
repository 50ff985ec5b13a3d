"""Codec: facts to and from their wire form; parsed once, at the edge."""

from __future__ import annotations

from typing import Any

from worldline.doctor.facts import Gpu, Interface, ProcessFacts
from worldline.fields import identifier
from worldline.v1 import doctor_pb2

_PLAIN = (
    "service",
    "instance",
    "node_id",
    "pid",
    "uid",
    "boot_id",
    "ipc_namespace",
    "pid_namespace",
    "net_namespace",
    "pids_used",
    "huge_pages_total",
    "huge_pages_free",
    "shared_memory_may_be_huge",
    "cpu_count",
    "cpus",
    "numa_node_count",
    "may_ptrace",
    "fingerprint",
)
_OPTIONAL = (
    "shared_memory_total_bytes",
    "shared_memory_free_bytes",
    "memlock_max_bytes",
    "open_files_max",
    "pids_max",
    "numa_node",
    "ptrace_scope",
)
_MAPS = ("versions", "environment", "settings", "self_checks")
_LISTS = ("rdma_devices", "devices", "lanes_here", "lanes_left")
_GPU = (
    "name",
    "model",
    "uuid",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_lanes",
    "pcie_lanes_max",
)


def facts_to_proto(facts: ProcessFacts) -> doctor_pb2.ProcessFacts:
    """The wire form."""
    names = (*_PLAIN, *_OPTIONAL, *_MAPS, *_LISTS)
    return doctor_pb2.ProcessFacts(
        **{name: getattr(facts, name) for name in names},
        interfaces=[
            doctor_pb2.NetworkInterface(
                name=one.name, up=one.up, speed_mbit_per_s=one.speed_mbit_per_s
            )
            for one in facts.interfaces
        ],
        gpus=[_gpu_to_proto(gpu) for gpu in facts.gpus],
    )


def facts_from_proto(message: doctor_pb2.ProcessFacts) -> ProcessFacts:
    """Parse.

    Raises:
        InvalidInput: it does not say of which service it is; `field` is `facts.service`.
    """
    identifier(message.service, "facts.service")
    plain: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    optional: dict[str, Any] = {
        name: getattr(message, name) if message.HasField(name) else None for name in _OPTIONAL
    }
    maps: dict[str, Any] = {name: dict(sorted(getattr(message, name).items())) for name in _MAPS}
    lists: dict[str, Any] = {name: tuple(getattr(message, name)) for name in _LISTS}
    return ProcessFacts(
        **plain,
        **optional,
        **maps,
        **lists,
        interfaces=tuple(
            Interface(one.name, one.up, one.speed_mbit_per_s) for one in message.interfaces
        ),
        gpus=tuple(_gpu_from_proto(gpu) for gpu in message.gpus),
    )


def _gpu_to_proto(gpu: Gpu) -> doctor_pb2.GpuFacts:
    return doctor_pb2.GpuFacts(
        **{name: getattr(gpu, name) for name in _GPU},
        numa_node=gpu.numa_node,
        nvlink_peers=gpu.nvlink_peers,
    )


def _gpu_from_proto(message: doctor_pb2.GpuFacts) -> Gpu:
    return Gpu(
        **{name: getattr(message, name) for name in _GPU},
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        nvlink_peers=tuple(message.nvlink_peers),
    )
