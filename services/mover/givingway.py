"""Giving way: the slot of a probe is whoever's who needs one. Pure.

A probe measures a path by pushing random bytes into a slot, and has one for some milliseconds. It
may take the last one: a move over a path that nobody has measured would never get there else. But
nobody is refused for it. Who finds every slot taken has a probe end, and waits until the transport
says that nothing writes to its slot any more; a slot that is on its way out already is waited for,
and no second probe ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from worldline.errors import CapacityExhausted

if TYPE_CHECKING:
    from services.mover.slots import SlotRef

#: Why a probe ended that has given way.
GAVE_WAY = "PROBE_GAVE_WAY"


@dataclass(frozen=True, slots=True)
class Room:
    """The slots of one device that are free, or a probe's."""

    free_count: int
    #: Of probes that have ended, quarantined until nothing writes to them.
    leaving_count: int
    #: Of probes that go on.
    probing: tuple[SlotRef, ...]


class Answer(Enum):
    """What becomes of somebody who asks for a slot."""

    TAKE = "take"
    WAIT = "wait"
    END_A_PROBE = "end a probe and wait"
    FULL = "full"


def answer(room: Room, ahead_count: int, *, probes: bool = False) -> Answer:
    """The answer to the next one, behind so many who wait for a slot each.

    A probe neither waits nor has another one end: it measures again later.
    """
    if room.free_count > ahead_count:
        return Answer.TAKE
    if probes:
        return Answer.FULL
    coming_count = room.free_count + room.leaving_count
    if coming_count > ahead_count:
        return Answer.WAIT
    return Answer.END_A_PROBE if coming_count + len(room.probing) > ahead_count else Answer.FULL


def gave_way(reservation_id: str) -> CapacityExhausted:
    """What a probe is told that has given way (PROBE_GAVE_WAY)."""
    return CapacityExhausted(
        f"probe {reservation_id} gave its slot to somebody who needed one: every other slot of the "
        "device is in use",
        reason=GAVE_WAY,
    )
