"""Starts: which bulk moves may be asked for now, while interactive moves go first.

A node takes part in one move at a time, bulk or interactive, whichever its direction. What a move
needs before its wire (a reserved slot, a warm engine) keeps no wire from anybody, so the next move
of a node is asked for while the one before has the wire: its lag is over when the wire is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan, Discipline
from worldline.errors import InvariantBroken

#: Moves under way at one node: one that has the wire, and the next, which waits for it.
UNDER_WAY_MAX = 2


class WaitReason(Enum):
    """What a bulk move waits for: an interactive move, a bulk move, or an earlier round's turn."""

    INTERACTIVE = "interactive"
    BULK = "bulk"
    ROUND = "round"


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A move that was asked for and whose bytes are not over.

    `wired`: it has its wire; before, it gets ready or waits.
    """

    move: BulkMove
    wired: bool


@dataclass(frozen=True, slots=True)
class Starts:
    """The moves to ask for now and those that wait, with why; all in the order of the plan.

    `start` find both their nodes free. `ahead` are the next at a node: they wait for its wire.
    """

    start: tuple[BulkMove, ...]
    ahead: tuple[BulkMove, ...]
    wait: tuple[tuple[BulkMove, WaitReason], ...]


def decide_starts(
    plan: BulkPlan,
    begun_move_ids: Collection[str],
    under_way: Collection[UnderWay],
    interactive_node_ids: Collection[str],
) -> Starts:
    """Decide again whenever a move has got its wire or has ended, bulk or interactive.

    `begun_move_ids` are the plan's moves that are under way, over, or not to be asked for now (one
    that failed and is to be tried again is not among them), `under_way` those that are, of this
    plan or an earlier one; `interactive_node_ids` the nodes of interactive moves that run or want
    to. Sets, for speed.

    A move starts where neither of its nodes is taken; of two that want one node, that of the
    earlier round. The current round, the first with a move to start, is never held up by a later
    one. Under Discipline.ROUNDS a move that waits for bulk alone keeps both its nodes from later
    rounds. One that waits for an interactive move keeps none: its other node's bulk goes on, so
    wherever no bulk move is under way and a move's nodes are free, some bulk move starts.

    Under Discipline.ROUNDS a move is asked for ahead where each node that is taken is so by one
    move only, which has the wire and uses it in the same direction: then its own wire cannot be
    granted before that one is over, by the movers' queues, and the order of the plan is kept. Its
    other node is kept for it meanwhile, which is what Discipline.LIST never does.

    Raises:
        InvariantBroken: more moves are under way at one node than may be.
    """
    rounds = plan.discipline is Discipline.ROUNDS
    nodes = _Nodes(under_way, interactive_node_ids)
    start: list[BulkMove] = []
    ahead: list[BulkMove] = []
    wait: list[tuple[BulkMove, WaitReason]] = []
    for move in plan.moves:
        if move.move_id in begun_move_ids:
            continue
        reason = nodes.wait_reason(move, ahead_too=rounds)
        if reason is None:
            (ahead if nodes.taken(move) else start).append(move)
            nodes.take(move, wired=False)
            continue
        wait.append((move, reason))
        if rounds and reason is not WaitReason.INTERACTIVE:
            nodes.hold(move)
    return Starts(tuple(start), tuple(ahead), tuple(wait))


class _Nodes:
    """What each node is taken by, and which are kept for an earlier round."""

    def __init__(self, under_way: Iterable[UnderWay], interactive: Collection[str]) -> None:
        self._interactive = interactive
        self._under_way: defaultdict[str, list[UnderWay]] = defaultdict(list)
        self._held: set[str] = set()
        for one in under_way:
            self.take(one.move, wired=one.wired)

    def take(self, move: BulkMove, *, wired: bool) -> None:
        for node_id in move.node_ids:
            here = self._under_way[node_id]
            here.append(UnderWay(move, wired))
            if len(here) > UNDER_WAY_MAX:
                names = ", ".join(one.move.move_id for one in here)
                raise InvariantBroken(f"moves {names} are all under way at {node_id}")

    def hold(self, move: BulkMove) -> None:
        self._held.update(move.node_ids)

    def taken(self, move: BulkMove) -> bool:
        return any(self._under_way.get(node_id) for node_id in move.node_ids)

    def wait_reason(self, move: BulkMove, *, ahead_too: bool) -> WaitReason | None:
        """None where it may be asked for. Interactive first: only what it blocks holds no node."""
        if any(node_id in self._interactive for node_id in move.node_ids):
            return WaitReason.INTERACTIVE
        if self.taken(move) and not (ahead_too and self._next_in_line(move)):
            return WaitReason.BULK
        if not self._held.isdisjoint(move.node_ids):
            return WaitReason.ROUND
        return None

    def _next_in_line(self, move: BulkMove) -> bool:
        return all(
            len(here) == 1
            and here[0].wired
            and (here[0].move.source_node_id == node_id) == (move.source_node_id == node_id)
            for node_id in move.node_ids
            if (here := self._under_way.get(node_id))
        )
