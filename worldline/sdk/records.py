"""Records: nodes, sessions and traces as a client sees them; parsed once, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldline.admissibility.profile_row import ProfileRow
from worldline.admissibility.row_codec import row_from_proto
from worldline.contract import Contract, contract_from_proto
from worldline.fields import enum_member
from worldline.park import ParkKind
from worldline.v1 import move_pb2, placement_pb2


@dataclass(frozen=True, slots=True)
class World:
    """What kind of world a session is: preset, and seed of its first frame and noise."""

    preset: str
    seed: int


@dataclass(frozen=True, slots=True)
class SlotName:
    """One use of one slot."""

    node_id: str
    slot_index: int
    generation: int


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """How blocks kept to their contracts, as engines told placement since that started.

    `degraded_blocks` had fewer denoising steps than full quality, `missed_periods` were done after
    their deadline; `releases_skipped` are points of a period that passed without a block.
    """

    blocks: int = 0
    degraded_blocks: int = 0
    releases_skipped: int = 0
    missed_periods: int = 0

    def __add__(self, other: BlockCounts) -> BlockCounts:
        return BlockCounts(
            self.blocks + other.blocks,
            self.degraded_blocks + other.degraded_blocks,
            self.releases_skipped + other.releases_skipped,
            self.missed_periods + other.missed_periods,
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine process as the directory knows it.

    `rows` are what its quanta were measured to take: by request shape, where it was bound then.
    `self_checks` are the presets that it generated twice, each with where the two runs parted:
    such a preset is not taken at T0 there. Empty: they were equal.
    """

    engine_id: str
    node_id: str
    address: str
    device: str
    alive: bool
    sessions: int
    fingerprint: str
    device_uuid: str
    numa_node: int | None
    facts: Mapping[str, str] = field(hash=False)
    rows: tuple[ProfileRow, ...] = ()
    self_checks: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: Of all sessions that it had.
    block_counts: BlockCounts = BlockCounts()

    @property
    def differing(self) -> tuple[str, ...]:
        """The presets that it does not generate twice with the same bits."""
        return tuple(preset for preset, differs in self.self_checks.items() if differs)


@dataclass(frozen=True, slots=True)
class Device:
    """One device on which a node has slots, each of `slot_bytes`.

    `uuid` is a GPU's own name, empty for the CPU; `numa_node` is None where the machine does not
    say; `nvlink_peers` are the UUIDs of the GPUs that NVLink reaches from it, `pcie_peers` of
    those that only PCIe does.
    `digest_rate_bytes_per_s` is what the host's cores verify in a second for all its nodes
    together, 0 where the device does that itself. Free slots are the directory's count; live,
    shadow and quarantined ones are the mover's own, of its last renewal.
    """

    name: str
    uuid: str
    slots_total: int
    slots_free: int
    slot_bytes: int
    numa_node: int | None
    nvlink_peers: tuple[str, ...]
    digest_rate_bytes_per_s: float = 0.0
    slots_live: int = 0
    slots_shadow: int = 0
    slots_quarantined: int = 0
    pcie_peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its mover's slots by device, and its engines.

    Nodes with one `host_id` are on one machine. `drain` is draining, drained or incomplete: the
    node takes no sessions; empty: it does.
    """

    node_id: str
    mover_address: str
    alive: bool
    engines: tuple[Engine, ...]
    devices: tuple[Device, ...]
    host_id: str
    drain: str = ""

    @property
    def slots_total(self) -> int:
        """Slots on all devices."""
        return sum(device.slots_total for device in self.devices)

    @property
    def slots_free(self) -> int:
        """Free slots on all devices."""
        return sum(device.slots_free for device in self.devices)


@dataclass(frozen=True, slots=True)
class ForkedFrom:
    """Where a session branched off another: of that, its epoch and its next block then.

    `branch` is its number among all branches of that session; with `same_noise` it draws what that
    draws, else noise of its own. `block_index` is None while the branch opens.
    """

    session_id: str
    epoch: int
    block_index: int | None
    branch: int
    same_noise: bool


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Where a session lives.

    `state` is opening, live, moving, suspending, suspended, resuming, lost or closed; `parked` says
    where a suspended session's state rests.
    """

    session_id: str
    epoch: int
    engine_id: str
    node_id: str
    engine_address: str
    contract: Contract
    world: World
    state: str
    state_bytes: int
    slot: SlotName | None
    parked: ParkKind | None = None
    #: Of the next block, as the owner said last; None where it has not said so yet.
    block_index: int | None = None
    #: None where it was opened.
    forked_from: ForkedFrom | None = None
    #: Over all engines that had it; None where none has told of it yet.
    block_counts: BlockCounts | None = None


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that happened within a span; its offset is from the trace's first span."""

    name: str
    offset_ms: float
    attributes: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TraceLink:
    """A span of another trace that a span has to do with."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One timed step in one service; offsets from the trace's first span."""

    span_id: str
    parent_span_id: str
    service: str
    name: str
    start_offset_ms: float
    duration_ms: float
    status: str
    attributes: Mapping[str, str] = field(hash=False)
    events: tuple[TraceEvent, ...] = ()
    links: tuple[TraceLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of one move, by start."""

    trace_id: str
    spans: tuple[TraceSpan, ...]


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """What placement holds (tasks, descriptors, ...) and how many moves ended how."""

    census: Mapping[str, int] = field(hash=False)
    moves_by_outcome: Mapping[str, int] = field(hash=False)


def placement_status_from_proto(
    message: placement_pb2.DescribePlacementResponse,
) -> PlacementStatus:
    """Parse once, at the edge."""
    return PlacementStatus(
        census=dict(sorted(message.census.counts.items())),
        moves_by_outcome=dict(sorted(message.moves_by_outcome.items())),
    )


def slot_from_proto(message: move_pb2.SlotRef) -> SlotName:
    """Parse once, at the edge."""
    return SlotName(message.node_id, message.slot_index, message.generation)


def node_from_proto(message: placement_pb2.Node) -> Node:
    """Parse once, at the edge."""
    return Node(
        node_id=message.node_id,
        mover_address=message.mover_address,
        alive=message.alive,
        engines=tuple(_engine_from_proto(engine) for engine in message.engines),
        devices=tuple(_device_from_proto(device) for device in message.devices),
        host_id=message.host_id,
        drain=message.drain,
    )


def _device_from_proto(message: placement_pb2.Device) -> Device:
    return Device(
        name=message.name,
        uuid=message.uuid,
        slots_total=message.slots_total,
        slots_free=message.slots_free,
        slot_bytes=message.slot_bytes,
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        nvlink_peers=tuple(message.nvlink_peers),
        pcie_peers=tuple(message.pcie_peers),
        digest_rate_bytes_per_s=message.digest_rate_bytes_per_s,
        slots_live=message.slots_live,
        slots_shadow=message.slots_shadow,
        slots_quarantined=message.slots_quarantined,
    )


def _engine_from_proto(message: placement_pb2.Engine) -> Engine:
    return Engine(
        engine_id=message.engine_id,
        node_id=message.node_id,
        address=message.engine_address,
        device=message.device,
        alive=message.alive,
        sessions=message.sessions,
        fingerprint=message.fingerprint.hash.hex(),
        device_uuid=message.device_uuid,
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        facts=dict(sorted(message.fingerprint.facts.items())),
        rows=tuple(row_from_proto(row) for row in message.rows),
        self_checks={one.preset: one.differs for one in message.self_checks},
        block_counts=_counts_from_proto(message.block_counts),
    )


def _counts_from_proto(message: placement_pb2.BlockCounts) -> BlockCounts:
    return BlockCounts(
        blocks=message.blocks,
        degraded_blocks=message.degraded_blocks,
        releases_skipped=message.releases_skipped,
        missed_periods=message.missed_periods,
    )


def session_from_proto(message: placement_pb2.Session) -> SessionInfo:
    """Parse once, at the edge.

    Raises:
        InvalidInput: the contract does not parse.
    """
    return SessionInfo(
        session_id=message.session_id,
        epoch=message.epoch,
        engine_id=message.engine_id,
        node_id=message.node_id,
        engine_address=message.engine_address,
        contract=contract_from_proto(message.contract),
        world=World(message.world.preset, message.world.seed),
        state=message.state,
        state_bytes=message.state_bytes,
        slot=slot_from_proto(message.slot) if message.HasField("slot") else None,
        parked=enum_member(ParkKind, message.parked, "session.parked") if message.parked else None,
        block_index=message.block_index if message.HasField("block_index") else None,
        forked_from=(
            _forked_from_proto(message.forked_from) if message.HasField("forked_from") else None
        ),
        block_counts=(
            _counts_from_proto(message.block_counts) if message.HasField("block_counts") else None
        ),
    )


def _forked_from_proto(message: placement_pb2.ForkedFrom) -> ForkedFrom:
    return ForkedFrom(
        session_id=message.session_id,
        epoch=message.epoch,
        block_index=message.block_index if message.HasField("block_index") else None,
        branch=message.branch,
        same_noise=message.same_noise,
    )


def trace_from_proto(message: placement_pb2.GetTraceResponse) -> Trace:
    """Parse once, at the edge."""
    return Trace(
        trace_id=message.trace_id,
        spans=tuple(
            TraceSpan(
                span_id=one.span_id,
                parent_span_id=one.parent_span_id,
                service=one.service,
                name=one.name,
                start_offset_ms=one.start_offset_ms,
                duration_ms=one.duration_ms,
                status=one.status,
                attributes=dict(sorted(one.attributes.items())),
                events=tuple(
                    TraceEvent(each.name, each.offset_ms, dict(sorted(each.attributes.items())))
                    for each in one.events
                ),
                links=tuple(
                    TraceLink(each.trace_id, each.span_id, dict(sorted(each.attributes.items())))
                    for each in one.links
                ),
            )
            for one in message.spans
        ),
    )
