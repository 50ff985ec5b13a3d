"""Orphans: LIVE slots that no session of the directory owns. Pure.

A slot is named an orphan only when nothing that is under way can still claim it: not a session
that opens, not an open move, not a session that is merely lost (its bytes may be all there is).
"""

from __future__ import annotations

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


def find_orphans(
    uses: tuple[SlotUse, ...],
    sessions: tuple[SessionRecord, ...],
    moves: tuple[Move, ...],
    grace_ms: int,
) -> tuple[SlotName, ...]:
    """The slots to release, sorted. `sessions` are those not closed, `moves` the open ones."""
    owned = {one.slot for one in sessions if one.slot is not None}
    unsettled = {one.session_id for one in sessions if one.state is SessionState.OPENING}
    unsettled |= {one.session_id for one in moves}
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


def foreign_slots(
    uses: tuple[SlotUse, ...],
    node_id: str,
    sessions: tuple[SessionRecord, ...],
    moves: tuple[Move, ...],
) -> int:
    """Slots in use that the directory does not count itself: quarantined, orphaned, probing."""
    known = {one.session_id for one in sessions if one.node_id == node_id}
    known |= {one.session_id for one in moves}
    return sum(1 for use in uses if use.session_id not in known)
