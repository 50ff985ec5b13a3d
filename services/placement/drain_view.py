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
    choices: dict[object, _Choice] = {}
    residents: list[Resident] = []
    slots_free: dict[str, int] = {}
    for session in sessions:
        choice = _NONE
        if session.state is SessionState.LIVE:
            # Sessions of one engine mostly want the same.
            wanted = session.owner, session.contract, session.extent_bytes
            if wanted not in choices:
                choices[wanted] = _choose(session, fleet, shortlist, now)
            choice = choices[wanted]
        residents.append(_resident(session, choice))
    for choice in choices.values():
        for target in choice.targets:
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


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where a session may go, or why nowhere."""

    targets: tuple[Target, ...] = ()
    seats: tuple[Seat, ...] = ()
    nowhere: Why | None = None


_NONE = _Choice()


def _choose(session: SessionRecord, fleet: Fleet, shortlist: Shortlist, now: float) -> _Choice:
    try:
        choice = shortlist.choose(wish_of(session, fleet), now)
    except NotFound as error:
        return _Choice(nowhere=Why(error.reason, error.message))
    if isinstance(choice, Verdict):
        return _Choice(nowhere=why_not(choice))
    targets = tuple(shortlist.target(one) for one in choice)
    return _Choice(targets, tuple(_seat(one, fleet) for one in targets))


def _seat(target: Target, fleet: Fleet) -> Seat:
    engine_id, node_id = target.party.engine_id, target.party.node_id
    return Seat(node_id, engine_id, _pool(fleet.slots_of(engine_id, node_id)))


def _resident(session: SessionRecord, choice: _Choice) -> Resident:
    return Resident(
        session_id=session.session_id,
        node_id=session.node_id,
        state=session.state,
        state_bytes=session.extent_bytes,
        seats=choice.seats,
        nowhere=choice.nowhere,
    )


def why_not(verdict: Verdict) -> Why:
    """What a reject says, for whoever reads of a session that is still there."""
    return Why(verdict.label, verdict.explanation, float(verdict.retry_after_ms))


def _pool(device: tuple[str, str]) -> str:
    return "/".join(device)
