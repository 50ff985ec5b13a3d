"""Records: what the directory keeps about nodes, engines, sessions and moves, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from services.placement.device import NUMA_NODE_MAX, DeviceRecord, device_named
from services.placement.forked import ForkedFrom
from services.placement.move import Move
from services.placement.parked import Parked
from services.placement.values import SlotName
from worldline.contract import Contract
from worldline.errors import InvalidInput
from worldline.fields import identifier, whole
from worldline.state.manifest import Fingerprint

#: Longest host:port or unix: address that anybody dials.
ADDRESS_CHARS_MAX = 512
PRESET_CHARS_MAX = 64
SEED_MAX = 2**64 - 1


class SessionState(Enum):
    """Where a session stands; the value is the word on the wire."""

    OPENING = "opening"
    LIVE = "live"
    MOVING = "moving"
    #: On its way out of its slot: the engine still owns it.
    SUSPENDING = "suspending"
    #: Owned by nobody; its state rests in a parked copy.
    SUSPENDED = "suspended"
    #: On its way back; owned by nobody until that is recorded.
    RESUMING = "resuming"
    #: Its owner is gone: the world runs nowhere, its slot may still hold it.
    LOST = "lost"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class WorldKind:
    """What kind of world a session runs.

    Raises:
        InvalidInput: no preset, or a seed out of range; `field` is `world.<name>`.
    """

    preset: str
    seed: int

    def __post_init__(self) -> None:
        identifier(self.preset, "world.preset")
        if len(self.preset) > PRESET_CHARS_MAX:
            raise InvalidInput("world.preset is too long", field="world.preset")
        whole(self.seed, "world.seed", at_most=SEED_MAX)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node: its mover, and the devices on which it has slots.

    Raises:
        InvalidInput: a field out of range, no device, or two of one name or UUID.
    """

    node_id: str
    mover_address: str
    incarnation: str
    host_id: str
    devices: tuple[DeviceRecord, ...]

    def __post_init__(self) -> None:
        identifier(self.node_id, "node_id")
        address(self.mover_address, "mover_address")
        identifier(self.incarnation, "incarnation")
        identifier(self.host_id, "host_id")
        if not self.devices:
            raise InvalidInput("a node without a device has no slots", field="devices")
        names = [one.name for one in self.devices]
        uuids = [one.uuid for one in self.devices if one.uuid]
        if len({*names}) < len(names) or len({*uuids}) < len(uuids):
            raise InvalidInput("two devices of a node are one", field="devices")


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One engine: a process that runs sessions on one device."""

    engine_id: str
    node_id: str
    engine_address: str
    device: str
    fingerprint: Fingerprint
    incarnation: str
    #: Of its GPU, and the NUMA node that is nearest to its device.
    device_uuid: str = ""
    numa_node: int | None = None

    def __post_init__(self) -> None:
        identifier(self.engine_id, "engine_id")
        identifier(self.node_id, "node_id")
        address(self.engine_address, "engine_address")
        identifier(self.device, "device")
        identifier(self.incarnation, "incarnation")
        if self.device_uuid:
            identifier(self.device_uuid, "device_uuid")
        if self.numa_node is not None:
            whole(self.numa_node, "numa_node", at_most=NUMA_NODE_MAX)

    def device_of(self, node: NodeRecord) -> DeviceRecord | None:
        """Its device as its node knows it; None where the node has no slots on it."""
        return device_named(node.devices, self.device, self.device_uuid)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One live world; `layout` is a serialized Layout, parsed where it is used."""

    session_id: str
    owner: str
    owner_incarnation: str
    node_id: str
    epoch: int
    state: SessionState
    contract: Contract
    world: WorldKind
    slot: SlotName | None = None
    layout: bytes = b""
    topology_hash: bytes = b""
    extent_bytes: int = 0
    idempotency_key: str = ""
    #: Where its state rests while it is suspended or on its way back.
    parked: Parked | None = None
    #: Where it branched off; None: it was opened.
    forked_from: ForkedFrom | None = None

    @property
    def takes_slot(self) -> bool:
        """Whether it has a slot, or will in a moment."""
        coming = (SessionState.OPENING, SessionState.RESUMING)
        return self.slot is not None or self.state in coming


@dataclass(frozen=True, slots=True)
class MoveEntry:
    """A move's durable record: the machine's facts and what was measured about it.

    `changed_unix_s` is wall time and serves nothing but the record's age in answers.
    """

    move: Move
    timings: tuple[tuple[str, float], ...] = ()
    frozen_ms: float = 0.0
    trace_id: str = ""
    idempotency_key: str = ""
    changed_unix_s: float = field(default=0.0, compare=False)

    def with_move(self, move: Move) -> MoveEntry:
        """The same record of a move that has gone on."""
        return replace(self, move=move)


@dataclass(frozen=True, slots=True)
class PathRecord:
    """What the last pushes over a path reached, for people and for an admission that has restarted;
    while it runs it has its own estimate.

    `setup_ms` is what a move took beside its transfer; `changed_unix_s` is wall time, for the age.
    """

    source_node_id: str
    target_node_id: str
    rate_bytes_per_s: float
    setup_ms: float
    samples: int
    changed_unix_s: float


def address(text: str, field_name: str) -> str:
    """An address that can be dialled: host:port or unix:path.

    Raises:
        InvalidInput: it cannot.
    """
    host, colon, rest = text.rpartition(":")
    wanted = text.startswith("unix:") or (host and rest.isdecimal() and 0 < int(rest) < 65_536)
    if not colon or not wanted or len(text) > ADDRESS_CHARS_MAX or not text.isprintable():
        raise InvalidInput(f"{field_name} must be host:port, got {text!r}", field=field_name)
    return text
