"""Drain: which sessions leave which nodes now, and where to. Pure.

All nodes that are drained make one demand, planned in rounds of node-disjoint moves
(`worldline.admissibility.bulk`). `take(event, now)` gives the actions that follow; whoever carries
them out reports what became of each as further events, and says with `Looked` how things stand.

Invariants:
- A session has at most one move of a drain under way, and only from a node that is drained.
- At a node there are at most a move that has its wire and the one that is next.
- Interactive goes first: no move is asked for at a node where an interactive one runs or wants to,
  and one that was asked for ahead is withdrawn there.
- Every session that is still on a node is in `left`, with a reason unless it is on its way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from services.placement.drain_attempts import Attempts
from services.placement.drain_rounds import DrainRounds
from services.placement.drain_values import (
    Action,
    Ask,
    Committed,
    Conclude,
    Decision,
    DrainState,
    Dropped,
    Event,
    Failed,
    Left,
    Looked,
    Ordered,
    Rejected,
    Resident,
    Sent,
    View,
    Why,
    Wired,
    Withdraw,
)
from services.placement.records import SessionState
from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan
from worldline.admissibility.bulk.starts import UnderWay, WaitReason, decide_starts
from worldline.errors import InvariantBroken

#: How long a lost session is waited for: an engine that was only silent, or that placement has not
#: heard of yet after a restart, has its worlds back with its next renewal.
LOST_WAIT_S = 30.0

GAVE_WAY = Why("GAVE_WAY", "an interactive move wants one of its nodes; it is asked for again")
OVERDUE = Why("DRAIN_DEADLINE", "its turn did not come before the drain's deadline")
UNDRAINED = Why("UNDRAINED", "its node is drained no more")
_FULL = Why("TARGET_FULL", "every slot that would do is taken or promised to another move")
_STAYS = {
    SessionState.SUSPENDED: Why(
        "SESSION_SUSPENDED", "its state is parked on this node: resume it, or close it"
    ),
    SessionState.LOST: Why("SESSION_LOST", "it runs nowhere: close it, or bring its engine back"),
}
_ITS_ROUND = Why("WAITS_ITS_ROUND", "its nodes are in another move of the drain")
_INTERACTIVE = Why("INTERACTIVE_FIRST", "an interactive move has one of its nodes, or wants it")


class Stage(Enum):
    """How far a move is: it waits for its wire, has it, or has given it back."""

    ASKED = "asked"
    WIRED = "wired"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class Flight:
    """A move under way; `ahead`: it was asked for behind another one's wire."""

    move: BulkMove
    ahead: bool
    stage: Stage = Stage.ASKED
    withdrawn: bool = False


class Drain:
    """The demand of all nodes that are drained together; `now` in monotonic seconds."""

    def __init__(self) -> None:
        #: Sessions that were moved off each node.
        self.moved: Counter[str] = Counter()
        self._deadlines_s: dict[str, float] = {}
        self._flights: dict[str, Flight] = {}
        self._attempts = Attempts()
        self._rounds = DrainRounds()
        self._residents: tuple[Resident, ...] = ()
        self._waits: dict[str, WaitReason] = {}
        #: Since when sessions are lost, as far as this drain has seen.
        self._lost_since: dict[str, float] = {}

    # --- for others ---

    @property
    def node_ids(self) -> frozenset[str]:
        """The nodes whose drain is under way."""
        return frozenset(self._deadlines_s)

    @property
    def flights(self) -> dict[str, Flight]:
        """The moves under way, by session."""
        return dict(self._flights)

    @property
    def plan(self) -> BulkPlan:
        """As it was made last."""
        return self._rounds.plan

    @property
    def rounds_left(self) -> int:
        """Rounds to come; what is under way counts as one."""
        here = {one.session_id for one in self._residents}
        gone = {move.move_id for move in self.plan.moves} - here
        return self._rounds.left({*self._flights, *gone}) + bool(self._flights)

    def wake_s(self, now: float) -> float:
        """When time alone changes something; infinite where it does not."""
        ends = (at_s for at_s in self._deadlines_s.values() if at_s > now)
        given_up = (since_s + LOST_WAIT_S for since_s in self._lost_since.values())
        patience = (at_s for at_s in given_up if at_s > now)
        return min((self._attempts.wake_s(now), *ends, *patience))

    def left(self, node_id: str, now: float) -> tuple[Left, ...]:
        """The sessions that were on that node at the last look, by name."""
        here = (one for one in self._residents if one.node_id == node_id)
        return tuple(self._left(one, now) for one in sorted(here, key=lambda each: each.session_id))

    def take(self, event: Event, now: float) -> Decision:
        """Take one event.

        Raises:
            InvariantBroken: it is about a move that is not under way.
        """
        match event:
            case Looked(view):
                return self._look(view, now)
            case Ordered(node_id, deadline_s, moved):
                if node_id not in self._deadlines_s:
                    self.moved[node_id] = moved
                self._deadlines_s[node_id] = deadline_s
                return Decision((), f"drain {node_id}")
            case Dropped(node_id):
                self._deadlines_s.pop(node_id, None)
                return Decision(tuple(self._withdraw_from(node_id, UNDRAINED)), f"leave {node_id}")
            case Wired(session_id):
                return self._staged(session_id, Stage.WIRED)
            case Sent(session_id):
                return self._staged(session_id, Stage.SENT)
            case Committed() | Rejected() | Failed():
                return self._landed(event, now)

    # --- what became of a move ---

    def _staged(self, session_id: str, stage: Stage) -> Decision:
        self._flights[session_id] = replace(self._flight(session_id), stage=stage)
        return Decision((), f"{session_id} is {stage.value}")

    def _landed(self, event: Committed | Rejected | Failed, now: float) -> Decision:
        session_id = event.session_id
        flight = self._flight(session_id)
        del self._flights[session_id]
        target = flight.move.target_node_id
        if isinstance(event, Committed):
            self.moved[flight.move.source_node_id] += 1
            return Decision((), f"{session_id} is on {target}")
        # Its place in the rounds is over: the others close up.
        self._rounds.broken()
        if flight.withdrawn:
            return Decision((), f"{session_id} was withdrawn")
        if isinstance(event, Rejected):
            self._attempts.rejected(session_id, target, event.why, now)
        else:
            self._attempts.failed(session_id, target, event.why, now)
        return Decision((), f"{session_id} is not on {target}: {event.why.reason}")

    def _flight(self, session_id: str) -> Flight:
        flight = self._flights.get(session_id)
        if flight is None:
            raise InvariantBroken(f"session {session_id} has no move of a drain under way")
        return flight

    # --- how things stand ---

    def _look(self, view: View, now: float) -> Decision:
        self._residents = view.residents
        self._lost_since = {
            one.session_id: self._lost_since.get(one.session_id, now)
            for one in view.residents
            if one.state is SessionState.LOST
        }
        self._attempts.keep_only({one.session_id for one in view.residents} | set(self._flights))
        actions: list[Action] = [*self._overdue(now), *self._give_way(view)]
        askable = {one.session_id: one for one in view.residents if self._askable(one, now)}
        seats = {name: (one, self._attempts.seats(one)) for name, one in askable.items()}
        load = Counter(one.move.target_node_id for one in self._flights.values())
        self._rounds.settle(seats, view.slots_free, load, self._attempts.refusals)
        actions += self._ask(frozenset(askable), view, now)
        actions += self._conclude(view, now)
        counts = Counter(type(one).__name__.lower() for one in actions)
        told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        return Decision(tuple(actions), f"{told or 'wait'}; {len(self._flights)} under way")

    def _overdue(self, now: float) -> Iterator[Action]:
        for node_id, deadline_s in self._deadlines_s.items():
            if now >= deadline_s:
                yield from self._withdraw_from(node_id, OVERDUE)

    def _withdraw_from(self, node_id: str, why: Why) -> Iterator[Action]:
        for session_id, flight in list(self._flights.items()):
            if flight.move.source_node_id == node_id:
                yield from self._withdraw(session_id, flight, why)

    def _give_way(self, view: View) -> Iterator[Action]:
        """What waits behind another's wire has begun nothing. What is next itself keeps its turn:
        admission has planned the interactive move behind it.
        """
        for session_id, flight in list(self._flights.items()):
            if flight.ahead and not view.interactive_node_ids.isdisjoint(flight.move.node_ids):
                yield from self._withdraw(session_id, flight, GAVE_WAY)

    def _withdraw(self, session_id: str, flight: Flight, why: Why) -> Iterator[Action]:
        if flight.stage is Stage.ASKED and not flight.withdrawn:
            self._flights[session_id] = replace(flight, withdrawn=True)
            yield Withdraw(session_id, why)

    def _askable(self, one: Resident, now: float) -> bool:
        """Whether it may be asked for, now or once its pause is over."""
        return (
            one.state is SessionState.LIVE
            and one.session_id not in self._flights
            and now < self._deadlines_s.get(one.node_id, -math.inf)
            and bool(self._attempts.seats(one))
        )

    def _ask(self, askable: frozenset[str], view: View, now: float) -> Iterator[Action]:
        due = askable - self._attempts.paused(now)
        begun = {move.move_id for move in self.plan.moves} - due
        under_way = [
            UnderWay(one.move, one.stage is Stage.WIRED)
            for one in self._flights.values()
            if one.stage is not Stage.SENT
        ]
        starts = decide_starts(self.plan, begun, under_way, view.interactive_node_ids)
        self._waits = {move.move_id: reason for move, reason in starts.wait}
        for moves, ahead in ((starts.start, False), (starts.ahead, True)):
            for move in moves:
                self._attempts.asked(move.move_id)
                self._flights[move.move_id] = Flight(move, ahead)
                yield Ask(move.move_id, move.source_node_id, move.target_node_id)

    def _conclude(self, view: View, now: float) -> Iterator[Action]:
        for node_id, deadline_s in list(self._deadlines_s.items()):
            if any(one.move.source_node_id == node_id for one in self._flights.values()):
                continue
            here = [one for one in view.residents if one.node_id == node_id]
            arriving = node_id in view.arriving_node_ids
            settled = not arriving and all(self._stays(one, now) for one in here)
            if settled or now >= deadline_s:
                del self._deadlines_s[node_id]
                done = not here and not arriving
                yield Conclude(node_id, DrainState.DRAINED if done else DrainState.INCOMPLETE)

    def _stays(self, one: Resident, now: float) -> bool:
        """Whether nothing that a drain could wait for will move it."""
        if one.state is SessionState.LOST:
            return now >= self._lost_since[one.session_id] + LOST_WAIT_S
        if one.state is not SessionState.LIVE:
            return one.state in _STAYS
        if self._attempts.seats(one):
            return False
        return one.nowhere is None or one.nowhere.retry_after_ms <= 0

    # --- in words ---

    def _left(self, one: Resident, now: float) -> Left:
        flight = self._flights.get(one.session_id)
        if flight is not None:
            return Left(one.session_id, one.node_id, one.state, flight.move.target_node_id)
        return Left(one.session_id, one.node_id, one.state, why=self._why(one, now))

    def _why(self, one: Resident, now: float) -> Why:
        name = one.session_id
        if one.state in _STAYS:
            return _STAYS[one.state]
        if one.state is not SessionState.LIVE:
            return Why(f"SESSION_{one.state.name}", f"it is {one.state.value}")
        if not self._attempts.seats(one):
            return one.nowhere or self._attempts.never(name) or _FULL
        refused = self._attempts.why(name, now)
        if refused is not None:
            return refused
        if name in self._rounds.unseated:
            return _FULL
        if one.node_id not in self._deadlines_s:
            return OVERDUE
        interactive = self._waits.get(name) is WaitReason.INTERACTIVE
        return _INTERACTIVE if interactive else _ITS_ROUND
