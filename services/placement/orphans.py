"""Orphans: LIVE slots that no session of the directory owns. Pure.

A slot is named an orphan only when nothing that is under way can still claim it: not a session
that opens or closes, not an open move, not a session that is merely lost (its bytes may be all
there is); and only once it has been nobody's for a while, in which an engine that still writes
there learns from its own renewals that it owns nothing.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from services.placement.move import Move
from services.placement.records import SessionRecord, SessionState
from services.placement.values import SlotName


@dataclass(frozen=True, slots=True)
class SlotUse:
    """A slot that a node reports as not FREE."""

    slot: SlotName
    live: bool
    session_id: str
    age_ms: int
    device: str = "cpu"
    #: A probe's: whoever needs a slot has this one.
    gives_way: bool = False


def find_orphans(
    uses: tuple[SlotUse, ...],
    sessions: tuple[SessionRecord, ...],
    moves: tuple[Move, ...],
    grace_ms: int,
    closing: AbstractSet[str] = frozenset(),
) -> tuple[SlotName, ...]:
    """The slots that are nobody's, sorted.

    `sessions` are those not closed, `moves` the open ones; `closing` the sessions whose engines
    have yet to let go.
    """
    owned = {one.slot for one in sessions if one.slot is not None}
    unsettled = {one.session_id for one in sessions if one.state is SessionState.OPENING}
    unsettled |= {one.session_id for one in moves} | closing
    return tuple(
        sorted(
            use.slot
            for use in uses
            if use.live
            and use.age_ms >= grace_ms
            and use.slot not in owned
            and use.session_id not in unsettled
        )
    )


class OrphanWatch:
    """Since when each slot has been nobody's; `now` in monotonic seconds."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_s = grace_ms / 1e3
        self._since: dict[SlotName, float] = {}

    def ripe(self, node_id: str, found: tuple[SlotName, ...], now: float) -> tuple[SlotName, ...]:
        """Those of a node's slots, nobody's now, that have been so for the whole grace."""
        others = {slot: at for slot, at in self._since.items() if slot.node_id != node_id}
        here = {slot: self._since.get(slot, now) for slot in found}
        self._since = others | here
        return tuple(slot for slot in found if now - here[slot] >= self._grace_s)


def foreign_slots(
    uses: tuple[SlotUse, ...],
    node_id: str,
    sessions: tuple[SessionRecord, ...],
    moves: tuple[Move, ...],
) -> tuple[SlotUse, ...]:
    """Slots in use that the directory does not count itself.

    They are quarantined or orphaned, or were released since the report was made. Those that give
    way are in nobody's way.
    """
    known = {one.session_id for one in sessions if one.node_id == node_id}
    known |= {one.session_id for one in moves}
    return tuple(use for use in uses if not use.gives_way and use.session_id not in known)
