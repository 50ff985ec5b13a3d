"""Device: where a node has slots, and how near two such places are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from worldline.errors import InvalidInput
from worldline.fields import identifier, non_negative, whole

NUMA_NODE_MAX = 1_023
NVLINK_PEERS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device of a node and its slots there; `slot_bytes` is of each.

    `name` is the node's own word for it (`cpu`, `cuda:0`); `uuid` is the GPU's, the same in every
    process, empty for the CPU. `nvlink_peers` are UUIDs. `digest_rate_bytes_per_s` is what the
    host's cores digest in a second for all its nodes together, 0 where the device digests itself.

    Raises:
        InvalidInput: a field out of range; `field` is `devices.<name>`.
    """

    name: str
    slots_total: int
    slot_bytes: int
    uuid: str = ""
    numa_node: int | None = None
    nvlink_peers: tuple[str, ...] = ()
    digest_rate_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        identifier(self.name, "devices.name")
        whole(self.slots_total, "devices.slots_total", at_least=1)
        whole(self.slot_bytes, "devices.slot_bytes", at_least=1)
        if self.uuid:
            identifier(self.uuid, "devices.uuid")
        if self.numa_node is not None:
            whole(self.numa_node, "devices.numa_node", at_most=NUMA_NODE_MAX)
        if len(self.nvlink_peers) > NVLINK_PEERS_MAX:
            raise InvalidInput("too many NVLink peers", field="devices.nvlink_peers")
        for peer in self.nvlink_peers:
            identifier(peer, "devices.nvlink_peers")
        non_negative(self.digest_rate_bytes_per_s, "devices.digest_rate_bytes_per_s")


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
    SAME_HOST = 1
    ELSEWHERE = 2


class Place(NamedTuple):
    """Where a state rests: which machine, which GPU (empty: none), what NVLink reaches from it."""

    host_id: str
    device_uuid: str = ""
    nvlink_peers: tuple[str, ...] = ()


def nearness(source: Place, target: Place) -> Nearness:
    """How near a target is. One end's word for a link is enough: the other may not see it."""
    linked = target.device_uuid in source.nvlink_peers or source.device_uuid in target.nvlink_peers
    if linked and source.device_uuid and target.device_uuid:
        return Nearness.NVLINK
    if source.host_id == target.host_id:
        return Nearness.SAME_HOST
    return Nearness.ELSEWHERE
