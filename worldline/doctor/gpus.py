"""GPUs: facts of those that a process uses, with their bus as NVML knows it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from worldline.cuda.devices import devices
from worldline.devicename import cuda_index
from worldline.doctor.facts import Gpu


def read_gpus(names: Iterable[str]) -> tuple[Gpu, ...]:
    """The GPUs among these devices; without those that are not here."""
    indices = [index for index in map(cuda_index, names) if index is not None]
    if not indices:
        return ()
    found = devices()
    gpus = [
        Gpu(
            name=found[index].torch_name,
            model=found[index].name,
            uuid=found[index].uuid,
            numa_node=found[index].numa_node,
            nvlink_peers=tuple(found[peer].uuid for peer in found[index].nvlink_peers),
        )
        for index in indices
        if index < len(found)
    ]
    return tuple(_with_bus(gpus))


def _with_bus(gpus: list[Gpu]) -> list[Gpu]:
    """With generation and width of the bus, where NVML is there to tell."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return gpus
    try:
        nvml.nvmlInit()
        try:
            return [replace(gpu, **_bus(nvml, gpu.uuid)) for gpu in gpus]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return gpus


def _bus(nvml: Any, uuid: str) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return {
        "pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_generation_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_lanes": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_lanes_max": nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    }
