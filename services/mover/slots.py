"""Slot table: which slot holds what, under which generation. Pure; the memory is elsewhere.

A slot's name is (node, index, generation) and the generation grows at every allocation, from a
start that is another for every process, so an old name never reaches a new tenant (invariant I8).
Work that touches a slot's bytes holds a pin; a slot that is given up while pinned is QUARANTINED,
and nobody may read, write or reuse it until the last pin is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from services.mover.givingway import Room
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    InvalidInput,
    InvariantBroken,
    NotFound,
)
from worldline.fields import identifier, whole
from worldline.v1 import move_pb2


class SlotRole(IntEnum):
    """What a slot is used for; numbers as in move.proto."""

    FREE = 1
    SHADOW = 2
    LIVE = 3
    QUARANTINED = 5


#: Every legal change of role. What is absent raises.
TRANSITIONS: frozenset[tuple[SlotRole, SlotRole]] = frozenset(
    {
        (SlotRole.FREE, SlotRole.SHADOW),
        (SlotRole.FREE, SlotRole.LIVE),
        (SlotRole.SHADOW, SlotRole.LIVE),
        (SlotRole.SHADOW, SlotRole.FREE),
        (SlotRole.LIVE, SlotRole.FREE),
        (SlotRole.SHADOW, SlotRole.QUARANTINED),
        (SlotRole.LIVE, SlotRole.QUARANTINED),
        (SlotRole.QUARANTINED, SlotRole.FREE),
    }
)


@dataclass(frozen=True, slots=True, order=True)
class SlotRef:
    """Names one use of one slot."""

    node_id: str
    slot_index: int
    generation: int


def ref_from_proto(message: move_pb2.SlotRef, field: str) -> SlotRef:
    """Parse.

    Raises:
        InvalidInput: absent or out of range; `field` names the part.
    """
    return SlotRef(
        node_id=identifier(message.node_id, f"{field}.node_id"),
        slot_index=message.slot_index,
        generation=whole(message.generation, f"{field}.generation", at_least=1),
    )


def ref_to_proto(ref: SlotRef) -> move_pb2.SlotRef:
    """The wire form."""
    return move_pb2.SlotRef(
        node_id=ref.node_id, slot_index=ref.slot_index, generation=ref.generation
    )


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot as it stands."""

    ref: SlotRef
    role: SlotRole
    session_id: str
    extent_bytes: int
    #: When the role last changed, on the caller's monotonic clock, seconds.
    since: float
    pins: int
    #: Where it rests, by the node's name for it.
    device: str = "cpu"
    #: Whether it is a probe's: whoever needs a slot has it.
    gives_way: bool = False


@dataclass(frozen=True, slots=True)
class Shelf:
    """One device's slots: how many, and the bytes of each; `uuid` is a GPU's, else empty."""

    device: str
    slot_count: int
    slot_bytes: int
    uuid: str = ""


class _Slot:
    __slots__ = (
        "extent_bytes",
        "generation",
        "gives_way",
        "pins",
        "role",
        "session_id",
        "shelf",
        "since",
    )

    def __init__(self, shelf: Shelf, generation: int, now: float) -> None:
        self.shelf = shelf
        self.role = SlotRole.FREE
        self.generation = generation
        self.session_id = ""
        self.extent_bytes = 0
        self.since = now
        self.pins = 0
        self.gives_way = False


#: Reasons of names that mean nothing any more.
GENERATION_STALE = "SLOT_GENERATION_STALE"
MOVER_REPLACED = "MOVER_REPLACED"


class SlotTable:
    """The slots of one node, by index along its shelves. Generations begin above a start."""

    def __init__(
        self, node_id: str, shelves: tuple[Shelf, ...], now: float, generation_start: int = 0
    ) -> None:
        self.node_id = node_id
        self.shelves = shelves
        self._generation_start = generation_start
        self._slots = [
            _Slot(shelf, generation_start, now)
            for shelf in shelves
            for _ in range(shelf.slot_count)
        ]
        self._on_free: list[Callable[[str], None]] = []

    def on_free(self, freed: Callable[[str], None]) -> None:
        """Call this with the device of every slot that becomes FREE."""
        self._on_free.append(freed)

    def shelf(self, device: str) -> Shelf:
        """The shelf of a device, named or by its UUID; the first where `device` is empty.

        Raises:
            InvalidInput: this node has no slots there.
        """
        for shelf in self.shelves:
            if device in ("", shelf.device) or device == shelf.uuid:
                return shelf
        known = ", ".join(f"{one.device} {one.uuid}".rstrip() for one in self.shelves)
        raise InvalidInput(
            f"node {self.node_id} has no slots on {device}; it has them on: {known}",
            reason="DEVICE_UNKNOWN",
            field="device",
        )

    def fitting(self, extent_bytes: int, device: str = "") -> Shelf:
        """The shelf of a device (see `shelf`), where a state of that size fits its slots.

        Raises:
            InvalidInput: as `shelf`.
            CapacityExhausted: it does not (STATE_TOO_LARGE).
        """
        shelf = self.shelf(device)
        if extent_bytes > shelf.slot_bytes:
            raise CapacityExhausted(
                f"a state of {extent_bytes} bytes does not fit a slot of {shelf.slot_bytes} bytes "
                f"on {shelf.device}; raise slot_bytes of the mover",
                reason="STATE_TOO_LARGE",
                field="extent_bytes",
            )
        return shelf

    def allocate(
        self,
        session_id: str,
        extent_bytes: int,
        role: SlotRole,
        now: float,
        device: str = "",
        *,
        gives_way: bool = False,
    ) -> SlotRef:
        """Take the lowest free slot of a device (see `shelf`), under a new generation.

        Raises:
            InvalidInput, CapacityExhausted: as `fitting`; or no slot is free (NO_FREE_SLOT).
        """
        shelf = self.fitting(extent_bytes, device)
        for index, slot in enumerate(self._slots):
            if slot.shelf is shelf and slot.role is SlotRole.FREE:
                slot.generation += 1
                slot.session_id = session_id
                slot.extent_bytes = extent_bytes
                slot.gives_way = gives_way
                self._change(slot, index, role, now)
                return SlotRef(self.node_id, index, slot.generation)
        raise self.full(shelf)

    def full(self, shelf: Shelf, why: str = "") -> CapacityExhausted:
        """No slot of that shelf is to be had (NO_FREE_SLOT)."""
        return CapacityExhausted(
            f"all {shelf.slot_count} slots of node {self.node_id} on {shelf.device} are in use"
            f"{why}",
            reason="NO_FREE_SLOT",
        )

    def room(self, shelf: Shelf) -> Room:
        """Which slots of that shelf can be had, now or soon."""
        states = [self._state(index) for index, one in enumerate(self._slots) if one.shelf is shelf]
        probes = [one for one in states if one.gives_way]
        return Room(
            free_count=sum(one.role is SlotRole.FREE for one in states),
            leaving_count=sum(one.role is SlotRole.QUARANTINED for one in probes),
            probing=tuple(one.ref for one in probes if one.role is SlotRole.SHADOW),
        )

    def resolve(
        self, ref: SlotRef, session_id: str | None = None, roles: frozenset[SlotRole] | None = None
    ) -> SlotState:
        """The slot that this name means, if it still means one.

        Raises:
            NotFound: another node's slot, or no such index.
            Fenced: an old generation, one of an earlier process (MOVER_REPLACED), or another
                session's slot.
            Conflict: the slot's role is not among `roles`.
        """
        slot = self._slot(ref)
        if not self._given_out_here(ref.generation):
            raise Fenced(
                f"slot {ref.slot_index} generation {ref.generation} is of an earlier process of "
                "this mover: a world that still plays in it can be neither moved nor parked. Fork "
                "it with the same noise (`worldline fork --same-noise`), which makes the same "
                "world in a slot of this process, and close this one",
                reason=MOVER_REPLACED,
                field="slot.generation",
            )
        if slot.generation != ref.generation or slot.role is SlotRole.FREE:
            raise Fenced(
                f"slot {ref.slot_index} generation {ref.generation} is over; "
                f"the slot is at generation {slot.generation}",
                reason=GENERATION_STALE,
                field="slot.generation",
            )
        if session_id is not None and slot.session_id != session_id:
            raise Fenced(
                f"slot {ref.slot_index} generation {ref.generation} is not of session {session_id}",
                reason="SLOT_OF_OTHER_SESSION",
                field="session_id",
            )
        if roles is not None and slot.role not in roles:
            wanted = ", ".join(sorted(role.name for role in roles))
            raise Conflict(
                f"slot {ref.slot_index} is {slot.role.name}, not {wanted}",
                reason="SLOT_ROLE",
                field="slot",
            )
        return self._state(ref.slot_index)

    def _given_out_here(self, generation: int) -> bool:
        newest = max(slot.generation for slot in self._slots)
        return self._generation_start < generation <= newest

    def promote(self, ref: SlotRef, now: float) -> None:
        """SHADOW to LIVE.

        Raises:
            Fenced, Conflict: as `resolve`.
        """
        self.resolve(ref, roles=frozenset({SlotRole.SHADOW}))
        self._change(self._slot(ref), ref.slot_index, SlotRole.LIVE, now)

    def pin(self, ref: SlotRef) -> None:
        """Keep the slot's bytes from being reused until `unpin`.

        Raises:
            Fenced: as `resolve`.
            Conflict: the slot is quarantined.
        """
        self.resolve(ref, roles=frozenset(set(SlotRole) - {SlotRole.QUARANTINED}))
        self._slot(ref).pins += 1

    def unpin(self, ref: SlotRef, now: float) -> None:
        """Undo one `pin`; a quarantined slot whose last pin this was is FREE."""
        slot = self._slot(ref)
        if slot.generation != ref.generation or slot.pins < 1:
            raise InvariantBroken(f"slot {ref.slot_index} was unpinned more often than pinned")
        slot.pins -= 1
        if slot.pins == 0 and slot.role is SlotRole.QUARANTINED:
            self._free(slot, ref.slot_index, now)

    def release(self, ref: SlotRef, now: float) -> bool:
        """Give a slot back: FREE, or QUARANTINED while it is pinned. False for an old generation.

        Raises:
            NotFound: another node's slot, or no such index.
        """
        slot = self._slot(ref)
        if slot.generation != ref.generation or slot.role is SlotRole.FREE:
            return False
        if slot.pins:
            if slot.role is not SlotRole.QUARANTINED:
                self._change(slot, ref.slot_index, SlotRole.QUARANTINED, now)
        else:
            self._free(slot, ref.slot_index, now)
        return True

    def states(self) -> tuple[SlotState, ...]:
        """Every slot, by index."""
        return tuple(self._state(index) for index in range(len(self._slots)))

    def free_count(self) -> int:
        """Slots that `allocate` can take."""
        return sum(slot.role is SlotRole.FREE for slot in self._slots)

    def _slot(self, ref: SlotRef) -> _Slot:
        if ref.node_id != self.node_id or not 0 <= ref.slot_index < len(self._slots):
            raise NotFound(
                f"no slot {ref.slot_index} of node {ref.node_id} here",
                reason="SLOT_UNKNOWN",
                field="slot",
            )
        return self._slots[ref.slot_index]

    def _state(self, index: int) -> SlotState:
        slot = self._slots[index]
        return SlotState(
            ref=SlotRef(self.node_id, index, slot.generation),
            role=slot.role,
            session_id=slot.session_id,
            extent_bytes=slot.extent_bytes,
            since=slot.since,
            pins=slot.pins,
            device=slot.shelf.device,
            gives_way=slot.gives_way,
        )

    def _free(self, slot: _Slot, index: int, now: float) -> None:
        slot.session_id = ""
        slot.extent_bytes = 0
        slot.gives_way = False
        self._change(slot, index, SlotRole.FREE, now)
        for freed in self._on_free:
            freed(slot.shelf.device)

    def _change(self, slot: _Slot, index: int, role: SlotRole, now: float) -> None:
        if (slot.role, role) not in TRANSITIONS:
            raise InvariantBroken(f"slot {index}: {slot.role.name} to {role.name} is no transition")
        slot.role = role
        slot.since = now
