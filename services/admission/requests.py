"""Requests: what callers ask of admission, as values that cannot be invalid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from worldline.admissibility.bounds import (
    DURATION_MS_MAX,
    RATE_BYTES_PER_S_MAX,
    check_dirty_rate,
    check_rate,
    check_state_bytes,
)
from worldline.admissibility.path_rate import TransferSample
from worldline.admissibility.profile_row import ProfileRow, RequestShape, shape_of
from worldline.contract import BULK_CLASSES, Contract
from worldline.errors import IntegrityError, InvalidInput
from worldline.fields import (
    BYTES_MAX,
    identifier,
    identifiers,
    non_negative,
    non_negatives,
    whole,
    wholes,
)
from worldline.ticket import TOPOLOGY_HASH_BYTES_MAX, MovePurpose

SLOTS_MAX = 2**32 - 1
#: A ticket's whole life: until it asks, its horizon, and two leases.
REMAINING_MS_MAX = 4 * int(DURATION_MS_MAX)
#: Receivers in one request: more than are worth comparing.
TARGETS_MAX = 64


@dataclass(frozen=True, slots=True)
class Resident:
    """A session that a device has, or will have.

    Raises:
        InvalidInput: no preset.
    """

    preset: str
    contract: Contract

    def __post_init__(self) -> None:
        identifier(self.preset, "device.residents.preset")

    @property
    def shape(self) -> RequestShape:
        """Whose row its quanta are charged by."""
        return shape_of(self.preset, self.contract)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What one device offers and already carries.

    `rows` are everything that was measured there; `residents` the sessions with a period that are
    there or on their way there.

    Raises:
        InvalidInput: a value out of range; `field` is `device.<name>`.
    """

    engine_id: str
    slots_total: int
    slots_used: int
    slot_bytes: int
    rows: tuple[ProfileRow, ...] = ()
    residents: tuple[Resident, ...] = ()

    def __post_init__(self) -> None:
        identifier(self.engine_id, "device.engine_id")
        whole(self.slots_total, "device.slots_total", at_most=SLOTS_MAX)
        whole(self.slots_used, "device.slots_used", at_most=SLOTS_MAX)
        whole(self.slot_bytes, "device.slot_bytes")
        # As bytes of a device they are added up.
        memory_bytes = self.slots_total * self.slot_bytes
        whole(memory_bytes, "device.slot_bytes", at_most=BYTES_MAX)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """May this session start on this device?

    Raises:
        InvalidInput: a state of no bytes, or no preset.
    """

    preset: str
    contract: Contract
    state_bytes: int
    device: DeviceLoad

    def __post_init__(self) -> None:
        identifier(self.preset, "preset")
        check_state_bytes(self.state_bytes, "state_bytes")

    @property
    def shape(self) -> RequestShape:
        """Whose row its quanta are charged by."""
        return shape_of(self.preset, self.contract)

    @property
    def has_period(self) -> bool:
        """Whether its blocks have deadlines; a client that paces its world needs no row."""
        return self.contract.period_ms > 0


class MoveTarget(NamedTuple):
    """One receiver that would do; checked by what it is part of (`check_targets`).

    `slots_free` counts before the moves that admission has under way. `digest_rate_bytes_per_s` is
    what the cores of `host_id` digest of all its wires together; 0 where they need not, or where
    that is unknown. Without a host the node is one of its own.
    """

    node_id: str
    engine_id: str = ""
    host_id: str = ""
    slots_free: int = 1
    digest_rate_bytes_per_s: float = 0.0


def check_targets(targets: Sequence[MoveTarget]) -> None:
    """Receivers as admission can reckon with.

    Raises:
        InvalidInput: a value out of range; `field` is `targets.<name>`.
    """
    if targets:
        node_ids, engine_ids, host_ids, slots_free, rates = zip(*targets, strict=True)
        identifiers(node_ids, "targets.node_id")
        identifiers([*filter(None, engine_ids)], "targets.engine_id")
        identifiers([*filter(None, host_ids)], "targets.host_id")
        wholes(slots_free, "targets.slots_free", at_most=SLOTS_MAX)
        name = "targets.digest_rate_bytes_per_s"
        non_negatives(rates, name, at_most=RATE_BYTES_PER_S_MAX)


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """May this move start now, or soon enough, and into which of `targets`, the nearest first?

    A probe has one target, no contract of its own, and may go without a session. `saves_ms` is
    what the move is worth in milliseconds of cost, 0 where it is ordered whatever it saves. With
    `bulk_wait_ms` nobody waits for it: it may wait for its wire for so long. Two requests are one
    and the same exactly when they are equal.

    Raises:
        InvalidInput: a value out of range or absent; `field` is its name.
    """

    move_id: str
    session_id: str
    epoch: int
    contract: Contract | None
    source_node_id: str
    targets: tuple[MoveTarget, ...]
    extent_bytes: int
    topology_hash: bytes
    purpose: MovePurpose
    dirty_rate_bytes_per_s: float = 0.0
    saves_ms: float = 0.0
    bulk_wait_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("move_id", "source_node_id"):
            identifier(getattr(self, name), name)
        if self.purpose is MovePurpose.SESSION:
            identifier(self.session_id, "session_id")
            if self.contract is None:
                raise InvalidInput("contract must be given", field="contract")
        elif self.session_id:
            identifier(self.session_id, "session_id")
        self._check_targets()
        whole(self.epoch, "epoch")
        check_state_bytes(self.extent_bytes, "extent_bytes")
        if not 1 <= len(self.topology_hash) <= TOPOLOGY_HASH_BYTES_MAX:
            raise InvalidInput(
                f"topology_hash must have 1 to {TOPOLOGY_HASH_BYTES_MAX} bytes, "
                f"got {len(self.topology_hash)}",
                field="topology_hash",
            )
        check_dirty_rate(self.dirty_rate_bytes_per_s, "dirty_rate_bytes_per_s")
        non_negative(self.saves_ms, "saves_ms", at_most=DURATION_MS_MAX)
        non_negative(self.bulk_wait_ms, "bulk_wait_ms", at_most=DURATION_MS_MAX / 2)

    def _check_targets(self) -> None:
        most = 1 if self.purpose is MovePurpose.PROBE else TARGETS_MAX
        if not 1 <= len(self.targets) <= most:
            raise InvalidInput(
                f"targets must name 1 to {most} receivers, got {len(self.targets)}",
                field="targets",
            )
        check_targets(self.targets)
        if self.source_node_id in [target.node_id for target in self.targets]:
            raise InvalidInput(
                f"node {self.source_node_id} cannot move a session to itself",
                reason="MOVE_TO_ITSELF",
                field="targets.node_id",
            )

    @property
    def bulk(self) -> bool:
        """Whether it waits for every move that is not: ordered so, classes C3 and C5, probes."""
        if self.purpose is MovePurpose.PROBE or self.contract is None or self.bulk_wait_ms > 0:
            return True
        return self.contract.service_class in BULK_CLASSES

    def deadline_ms(self, move_ms: float) -> float:
        """From asking for the wire until a move charged `move_ms` must have committed; 0: never."""
        if self.purpose is MovePurpose.PROBE or self.contract is None:
            return 0.0
        if self.bulk_wait_ms > 0:
            return max(self.contract.horizon_ms, move_ms + self.bulk_wait_ms)
        return self.contract.horizon_ms


@dataclass(frozen=True, slots=True)
class MoveReport:
    """How a move ended. `ticket_id` is empty where the answer that carried it was lost.

    `sample` is absent where nothing was measured; `verified` says that digests were computed.

    Raises:
        InvalidInput: neither a ticket nor a move is named.
    """

    ticket_id: str
    move_id: str
    sample: TransferSample | None
    verified: bool
    committed: bool
    reason: str

    def __post_init__(self) -> None:
        identifier(self.move_id, "move_id")
        if self.ticket_id:
            identifier(self.ticket_id, "ticket_id")

    @property
    def corrupted(self) -> bool:
        """Whether its bytes were found to differ, and nothing was installed."""
        return self.reason == IntegrityError.default_reason


@dataclass(frozen=True, slots=True)
class RunningMove:
    """A move that has a ticket and has not ended, told to an admission that has restarted.

    It may go on for `remaining_ms` at most.

    Raises:
        InvalidInput: a value out of range; `field` is `moves.<name>`.
    """

    ticket_id: str
    move_id: str
    session_id: str
    epoch: int
    source_node_id: str
    target: MoveTarget
    extent_bytes: int
    remaining_ms: int

    def __post_init__(self) -> None:
        for name in ("ticket_id", "move_id", "source_node_id"):
            identifier(getattr(self, name), f"moves.{name}")
        if self.session_id:
            identifier(self.session_id, "moves.session_id")
        check_targets((self.target,))
        whole(self.epoch, "moves.epoch")
        check_state_bytes(self.extent_bytes, "moves.extent_bytes")
        whole(self.remaining_ms, "moves.remaining_ms", at_least=1, at_most=REMAINING_MS_MAX)


@dataclass(frozen=True, slots=True)
class RememberedPath:
    """What somebody remembers that a path reached, `age_ms` ago, and took around its wire.

    Raises:
        InvalidInput: a value out of range; `field` is `paths.<name>`.
    """

    source_node_id: str
    target_node_id: str
    rate_bytes_per_s: float
    age_ms: float
    setup_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("source_node_id", "target_node_id"):
            identifier(getattr(self, name), f"paths.{name}")
        check_rate(self.rate_bytes_per_s, "paths.rate_bytes_per_s")
        non_negative(self.setup_ms, "paths.setup_ms", at_most=DURATION_MS_MAX / 2)
        non_negative(self.age_ms, "paths.age_ms", at_most=10 * DURATION_MS_MAX)
