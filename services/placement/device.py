"""Device: where a node has slots, and how near two such places are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from worldline.errors import InvalidInput
from worldline.fields import identifier, non_negative, whole

NUMA_NODE_MAX = 1_023
#: Over each kind of link.
PEERS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device of a node and its slots there; `slot_bytes` is of each.

    `name` is the node's own word for it (`cpu`, `cuda:0`); `uuid` is the GPU's, the same in every
    process, empty for the CPU. `nvlink_peers` and `pcie_peers` are UUIDs of the GPUs whose memory
    it reaches directly over either. `digest_rate_bytes_per_s` is what the host's cores digest in a
    second for all its nodes together, 0 where the device digests itself.

    Raises:
        InvalidInput: a field out of range; `field` is `devices.<name>`.
    """

    name: str
    slots_total: int
    slot_bytes: int
    uuid: str = ""
    numa_node: int | None = None
    nvlink_peers: tuple[str, ...] = ()
    pcie_peers: tuple[str, ...] = ()
    digest_rate_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        identifier(self.name, "devices.name")
        whole(self.slots_total, "devices.slots_total", at_least=1)
        whole(self.slot_bytes, "devices.slot_bytes", at_least=1)
        if self.uuid:
            identifier(self.uuid, "devices.uuid")
        if self.numa_node is not None:
            whole(self.numa_node, "devices.numa_node", at_most=NUMA_NODE_MAX)
        _check_peers(self.nvlink_peers, "devices.nvlink_peers")
        _check_peers(self.pcie_peers, "devices.pcie_peers")
        non_negative(self.digest_rate_bytes_per_s, "devices.digest_rate_bytes_per_s")


def _check_peers(peers: tuple[str, ...], field: str) -> None:
    if len(peers) > PEERS_MAX:
        raise InvalidInput(f"{len(peers)} peers are more than {PEERS_MAX}", field=field)
    for peer in peers:
        identifier(peer, field)


def device_named(
    devices: tuple[DeviceRecord, ...], name: str, uuid: str = ""
) -> DeviceRecord | None:
    """The device of that UUID; where none is given, of that name.

    A name means different GPUs in processes with different `CUDA_VISIBLE_DEVICES`, a UUID one.
    """
    for one in devices:
        if one.uuid == uuid if uuid else one.name == name:
            return one
    return None


class Nearness(IntEnum):
    """What lies between two devices; less is nearer."""

    NVLINK = 0
    PCIE = 1
    SAME_HOST = 2
    ELSEWHERE = 3


class Place(NamedTuple):
    """Where a state rests: which machine, which GPU (empty: none), what links reach from it."""

    host_id: str
    device_uuid: str = ""
    nvlink_peers: tuple[str, ...] = ()
    #: On the same machine: PCIe leads to no other.
    pcie_peers: tuple[str, ...] = ()


def place_of(host_id: str, device: DeviceRecord) -> Place:
    """Where a state in one of the device's slots rests."""
    return Place(host_id, device.uuid, device.nvlink_peers, device.pcie_peers)


def nearness(source: Place, target: Place) -> Nearness:
    """How near a target is. One end's word for a link is enough: the other may not see it."""
    if _linked(source, target, source.nvlink_peers, target.nvlink_peers):
        return Nearness.NVLINK
    if source.host_id != target.host_id:
        return Nearness.ELSEWHERE
    if _linked(source, target, source.pcie_peers, target.pcie_peers):
        return Nearness.PCIE
    return Nearness.SAME_HOST


def _linked(
    source: Place, target: Place, from_source: tuple[str, ...], from_target: tuple[str, ...]
) -> bool:
    if not source.device_uuid or not target.device_uuid:
        return False
    return target.device_uuid in from_source or source.device_uuid in from_target
