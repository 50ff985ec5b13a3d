"""Drain view: sessions, moves and fleet as a drain is told of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from services.placement.beginning import wish_of
from services.placement.context import MoveContext
from services.placement.drain_values import Resident, Seat, View, Why
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import SessionRecord, SessionState
from services.placement.shortlist import Shortlist
from services.placement.targets import Target
from worldline.contract import BULK_CLASSES
from worldline.errors import NotFound
from worldline.verdict import Verdict

#: An admitted move wants its wires, or has them.
_WIRES = frozenset({MovePhase.ADMITTED, MovePhase.RESERVED, MovePhase.FROZEN})
#: After that the session itself says where it is.
_NOT_COMMITTED = frozenset(
    phase for phase in MovePhase if not phase.terminal and phase is not MovePhase.COMMITTED
)


@dataclass(frozen=True, slots=True)
class OpenMove:
    """A move under way, with what it was begun for."""

    move: Move
    context: MoveContext

    @property
    def interactive(self) -> bool:
        """Whether somebody waits for it."""
        contract = self.context.session.contract
        return self.context.bulk_wait_ms == 0 and contract.service_class not in BULK_CLASSES

    @property
    def node_ids(self) -> tuple[str, str]:
        """Its two ends."""
        return self.move.source.node_id, self.move.target.node_id

    def may_arrive_at(self) -> set[str]:
        """Where its session may be when it is over."""
        if self.move.phase not in _NOT_COMMITTED:
            return set()
        if self.move.phase is MovePhase.REQUESTED:
            return {one.party.node_id for one in self.context.targets}
        return {self.move.target.node_id}


def make_view(
    sessions: Sequence[SessionRecord],
    moves: Sequence[OpenMove],
    node_ids: Collection[str],
    fleet: Fleet,
    shortlist: Shortlist,
    now: float,
) -> View:
    """`sessions` are those on `node_ids`, the nodes that are drained; `moves` all that are open."""
    coming = Counter(
        fleet.slots_of(one.move.target.engine_id, one.move.target.node_id)
        for one in moves
        if one.move.phase in _NOT_COMMITTED
    )
    residents: list[Resident] = []
    slots_free: dict[str, int] = {}
    for session in sessions:
        resident, targets = _resident(session, fleet, shortlist, now)
        residents.append(resident)
        for target in targets:
            device = fleet.slots_of(target.party.engine_id, target.party.node_id)
            slots_free[_pool(device)] = max(0, target.slots_free - coming[device])
    arriving = set[str]().union(*(one.may_arrive_at() for one in moves))
    return View(
        residents=tuple(residents),
        slots_free=slots_free,
        interactive_node_ids=_interactive(moves),
        arriving_node_ids=frozenset(arriving.intersection(node_ids)),
    )


def _interactive(moves: Iterable[OpenMove]) -> frozenset[str]:
    return frozenset(
        node_id
        for one in moves
        if one.interactive and one.move.phase in _WIRES
        for node_id in one.node_ids
    )


def _resident(
    session: SessionRecord, fleet: Fleet, shortlist: Shortlist, now: float
) -> tuple[Resident, tuple[Target, ...]]:
    targets: tuple[Target, ...] = ()
    nowhere: Why | None = None
    if session.state is SessionState.LIVE:
        try:
            choice = shortlist.choose(wish_of(session, fleet), now)
        except NotFound as error:
            nowhere = Why(error.reason, error.message)
        else:
            if isinstance(choice, Verdict):
                nowhere = why_not(choice)
            else:
                targets = tuple(shortlist.target(one) for one in choice)
    seats = tuple(
        Seat(
            one.party.node_id,
            one.party.engine_id,
            _pool(fleet.slots_of(one.party.engine_id, one.party.node_id)),
        )
        for one in targets
    )
    resident = Resident(
        session_id=session.session_id,
        node_id=session.node_id,
        state=session.state,
        state_bytes=session.extent_bytes,
        seats=seats,
        nowhere=nowhere,
    )
    return resident, targets


def why_not(verdict: Verdict) -> Why:
    """What a reject says, for whoever reads of a session that is still there."""
    return Why(verdict.label, verdict.explanation, float(verdict.retry_after_ms))


def _pool(device: tuple[str, str]) -> str:
    return "/".join(device)
