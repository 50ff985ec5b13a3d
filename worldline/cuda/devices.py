"""Devices: the CUDA devices of this process, and how they are connected."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from worldline.cuda.availability import unavailable_reason
from worldline.cuda.runtime import call

_PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Device:
    """One device as this process sees it (CUDA_VISIBLE_DEVICES applies to `index` alone)."""

    index: int
    name: str
    #: As nvidia-smi prints it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    multiprocessor_count: int
    #: Of the host's memory that is nearest; None where the host does not say.
    numa_node: int | None
    #: Indices of the devices whose memory this one reaches directly, over any link.
    peers: tuple[int, ...]
    #: Those of them that are reached over NVLink; empty where NVML cannot tell.
    nvlink_peers: tuple[int, ...]

    @property
    def pcie_peers(self) -> tuple[int, ...]:
        """Peers that are reached over PCIe, without the host's memory in between."""
        return tuple(peer for peer in self.peers if peer not in self.nvlink_peers)

    @property
    def torch_name(self) -> str:
        """`cuda:0` for index 0: what slots and torch call it."""
        return f"cuda:{self.index}"


@cache
def devices() -> tuple[Device, ...]:
    """All devices by index; empty where CUDA cannot be used. Asked once a process."""
    if unavailable_reason() is not None:
        return ()
    count = call("cudaGetDeviceCount")
    properties = [call("cudaGetDeviceProperties", index) for index in range(count)]
    uuids = [_uuid(item) for item in properties]
    links = _nvlink_peers(uuids)
    return tuple(
        _device(index, item, uuids[index], count, links[index])
        for index, item in enumerate(properties)
    )


def _device(index: int, found: Any, uuid: str, count: int, nvlink: tuple[int, ...]) -> Device:
    pci_address = f"{found.pciDomainID:04x}:{found.pciBusID:02x}:{found.pciDeviceID:02x}.0"
    return Device(
        index=index,
        name=found.name.decode(),
        uuid=uuid,
        memory_bytes=found.totalGlobalMem,
        compute_capability=(found.major, found.minor),
        multiprocessor_count=found.multiProcessorCount,
        numa_node=_numa_node(pci_address),
        peers=tuple(
            other
            for other in range(count)
            if other != index and call("cudaDeviceCanAccessPeer", index, other)
        ),
        nvlink_peers=nvlink,
    )


def _uuid(found: Any) -> str:
    digits = bytes(found.uuid.bytes)[:16].hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)


def _numa_node(pci_address: str) -> int | None:
    try:
        node = int((_PCI_DEVICES / pci_address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nvlink_peers(uuids: list[str]) -> list[tuple[int, ...]]:
    """Per device the indices of those that NVLink connects it with, through a switch too.

    NVML is told devices by UUID, since its own numbers ignore CUDA_VISIBLE_DEVICES.
    """
    none: list[tuple[int, ...]] = [() for _ in uuids]
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return none
    try:
        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            return [_linked(nvml, handles, index) for index in range(len(handles))]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return none


def _linked(nvml: Any, handles: list[Any], index: int) -> tuple[int, ...]:
    """Indices of the devices that NVLink connects this one with."""
    capability = nvml.NVML_P2P_CAPS_INDEX_NVLINK
    return tuple(
        other
        for other, handle in enumerate(handles)
        if other != index
        and nvml.nvmlDeviceGetP2PStatus(handles[index], handle, capability)
        == nvml.NVML_P2P_STATUS_OK
    )
