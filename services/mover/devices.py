"""Devices: what the mover's slots rest on, told once at start, for placement and for the table."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.cuda.availability import unavailable_reason
from worldline.cuda.devices import devices
from worldline.devicename import CPU, cuda_index
from worldline.errors import Unavailable
from worldline.numa import numa_node_of_process


@dataclass(frozen=True, slots=True)
class Device:
    """One device: `uuid` is a GPU's own name, empty for the CPU; peers are UUIDs.

    `numa_node` is None where the machine does not say.
    """

    name: str
    uuid: str = ""
    numa_node: int | None = None
    nvlink_peers: tuple[str, ...] = ()
    pcie_peers: tuple[str, ...] = ()


def describe_devices(names: tuple[str, ...]) -> tuple[Device, ...]:
    """Each named device of this process, in that order.

    Raises:
        Unavailable: CUDA does not work here, or there is no such GPU; `field` is `devices`.
    """
    return tuple(_cpu() if name == CPU else _gpu(name) for name in names)


def _cpu() -> Device:
    return Device(CPU, numa_node=numa_node_of_process())


def _gpu(name: str) -> Device:
    reason = unavailable_reason()
    if reason is not None:
        raise Unavailable(
            f"no slots on {name}: {reason}", reason="CUDA_UNAVAILABLE", field="devices"
        )
    index, found = cuda_index(name), devices()
    if index is None or index >= len(found):
        known = ", ".join(one.torch_name for one in found) or "none"
        raise Unavailable(
            f"there is no {name} here; there are: {known}",
            reason="CUDA_DEVICE_UNKNOWN",
            field="devices",
        )
    gpu = found[index]
    return Device(
        name=name,
        uuid=gpu.uuid,
        numa_node=gpu.numa_node,
        nvlink_peers=tuple(found[peer].uuid for peer in gpu.nvlink_peers),
        pcie_peers=tuple(found[peer].uuid for peer in gpu.pcie_peers),
    )
