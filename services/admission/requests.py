"""Requests: what callers ask of admission, as values that cannot be invalid."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.admissibility.bounds import check_dirty_rate, check_state_bytes
from worldline.admissibility.path_rate import TransferSample
from worldline.contract import Contract
from worldline.errors import InvalidInput
from worldline.fields import identifier, non_negative, whole
from worldline.ticket import TOPOLOGY_HASH_BYTES_MAX, MovePurpose

#: Above any device; keeps quanta and periods in a range where their products stay finite.
QUANTUM_MS_MAX = 86_400_000.0
QUANTA_PER_BLOCK_MAX = 1_000_000
SLOTS_MAX = 2**32 - 1
UTILIZATION_MAX = 1e6


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What one device offers and already carries.

    `quantum_ms` is measured for the request's shape on this device, 0 while unmeasured;
    `utilization` sums block time over period for the resident sessions that have a period.

    Raises:
        InvalidInput: a value out of range; `field` is `device.<name>`.
    """

    engine_id: str
    slots_total: int
    slots_used: int
    slot_bytes: int
    quantum_ms: float
    quanta_per_block: int
    utilization: float

    def __post_init__(self) -> None:
        identifier(self.engine_id, "device.engine_id")
        whole(self.slots_total, "device.slots_total", at_most=SLOTS_MAX)
        whole(self.slots_used, "device.slots_used", at_most=SLOTS_MAX)
        whole(self.slot_bytes, "device.slot_bytes")
        non_negative(self.quantum_ms, "device.quantum_ms", at_most=QUANTUM_MS_MAX)
        whole(self.quanta_per_block, "device.quanta_per_block", at_most=QUANTA_PER_BLOCK_MAX)
        non_negative(self.utilization, "device.utilization", at_most=UTILIZATION_MAX)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """May this session start on this device?

    Raises:
        InvalidInput: a state of no bytes.
    """

    contract: Contract
    state_bytes: int
    device: DeviceLoad

    def __post_init__(self) -> None:
        check_state_bytes(self.state_bytes, "state_bytes")


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """May this move start now? A probe has no contract of its own and may go without a session.

    Two requests are one and the same exactly when they are equal.

    Raises:
        InvalidInput: a value out of range or absent; `field` is its name.
    """

    move_id: str
    session_id: str
    epoch: int
    contract: Contract | None
    source_node_id: str
    target_node_id: str
    extent_bytes: int
    topology_hash: bytes
    purpose: MovePurpose
    dirty_rate_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("move_id", "source_node_id", "target_node_id"):
            identifier(getattr(self, name), name)
        if self.purpose is MovePurpose.SESSION:
            identifier(self.session_id, "session_id")
            if self.contract is None:
                raise InvalidInput("contract must be given", field="contract")
        elif self.session_id:
            identifier(self.session_id, "session_id")
        if self.source_node_id == self.target_node_id:
            raise InvalidInput(
                f"node {self.source_node_id} cannot move a session to itself",
                reason="MOVE_TO_ITSELF",
                field="target_node_id",
            )
        whole(self.epoch, "epoch")
        check_state_bytes(self.extent_bytes, "extent_bytes")
        if not 1 <= len(self.topology_hash) <= TOPOLOGY_HASH_BYTES_MAX:
            raise InvalidInput(
                f"topology_hash must have 1 to {TOPOLOGY_HASH_BYTES_MAX} bytes, "
                f"got {len(self.topology_hash)}",
                field="topology_hash",
            )
        check_dirty_rate(self.dirty_rate_bytes_per_s, "dirty_rate_bytes_per_s")


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
