"""Occupancy: which slots sessions and moves take on every node, kept change by change. Pure.

What `Fleet.slots_used` counts from all sessions and all moves is here counted from those that
changed; who is told that a node's counts may have changed looks at that node again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from services.placement.fleet import Fleet, Paced, pace_of
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import SessionRecord, SessionState

#: (engine, node) of whoever takes a slot: which device it is on, the fleet knows.
_Seat = tuple[str, str]
_NONE: Mapping[str, int] = {}


class _Resident(NamedTuple):
    """What a session takes: its layout and digests are not kept."""

    seat: _Seat
    takes_slot: bool
    pace: Paced | None


class _Claim(NamedTuple):
    """The slot that a move takes beside its session's: the one that it goes to, until it is
    committed and its session has that; then the one that it left, until that is free.
    """

    committed: bool
    seat: _Seat


class Occupancy:
    """Sessions and open moves by node. `touched` is called with every node whose slots change."""

    def __init__(self, fleet: Fleet, touched: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._touched = touched
        self._sessions: dict[str, _Resident] = {}
        self._claims: dict[str, _Claim] = {}
        #: By node, and there by the engine that the slot is for.
        self._kept: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._coming: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._paced: defaultdict[str, dict[str, Paced]] = defaultdict(dict)

    # --- changes ---

    def put_session(self, session: SessionRecord) -> None:
        """A session as it is now; a closed one is forgotten."""
        name = session.session_id
        before = self._sessions.pop(name, None)
        after = None if session.state is SessionState.CLOSED else _resident(session)
        if after is not None:
            self._sessions[name] = after
        if after == before:
            return
        if before is not None:
            self._seat(name, before, -1)
        if after is not None:
            self._seat(name, after, 1)

    def put_move(self, move: Move) -> None:
        """A move as far as it has got; one that has ended is forgotten."""
        before = self._claims.pop(move.move_id, None)
        after = None if move.phase.terminal else _claim(move)
        if after is not None:
            self._claims[move.move_id] = after
        if after == before:
            return
        for claim, sign in ((before, -1), (after, 1)):
            if claim is not None:
                counts = self._kept if claim.committed else self._coming
                self._count(counts, claim.seat, sign)

    # --- counts ---

    def kept(self, node_id: str) -> Mapping[str, int]:
        """Slots in use by device, but for those that moves under way take at their targets."""
        return self._by_device(self._kept, node_id)

    def coming(self, node_id: str) -> Mapping[str, int]:
        """Slots by device that moves under way take at their targets."""
        return self._by_device(self._coming, node_id)

    def utilization(self, engine_id: str) -> float:
        """Sum over an engine's sessions with a period of block time over period."""
        paced = self._paced.get(engine_id)
        return self._fleet.utilization_of(engine_id, paced.values()) if paced else 0.0

    # --- inside ---

    def _seat(self, name: str, one: _Resident, sign: int) -> None:
        engine_id = one.seat[0]
        if one.takes_slot:
            self._count(self._kept, one.seat, sign)
        if one.pace is not None:
            if sign > 0:
                self._paced[engine_id][name] = one.pace
            else:
                del self._paced[engine_id][name]

    def _count(self, counts: defaultdict[str, dict[str, int]], seat: _Seat, sign: int) -> None:
        engine_id, node_id = seat
        here = counts[node_id]
        count = here.get(engine_id, 0) + sign
        if count:
            here[engine_id] = count
        else:
            del here[engine_id]
        self._touched(node_id)

    def _by_device(
        self, counts: defaultdict[str, dict[str, int]], node_id: str
    ) -> Mapping[str, int]:
        here = counts.get(node_id)
        if not here:
            return _NONE
        found: dict[str, int] = {}
        for engine_id, count in here.items():
            device = self._fleet.slots_of(engine_id, node_id)[1]
            found[device] = found.get(device, 0) + count
        return found


def _resident(session: SessionRecord) -> _Resident:
    return _Resident((session.owner, session.node_id), session.takes_slot, pace_of(session))


def _claim(move: Move) -> _Claim:
    committed = move.phase is MovePhase.COMMITTED
    party = move.source if committed else move.target
    return _Claim(committed, (party.engine_id, party.node_id))
