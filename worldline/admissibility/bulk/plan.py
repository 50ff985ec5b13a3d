"""Bulk plan: bulk moves in rounds of node-disjoint matchings, and how long they take at most.

T(m) is what move m takes alone, W(v) the sum of T over the moves at node v, and L(r) the longest
T of round r. Without interactive moves, without failures and where the wire is there as soon as it
is asked for, `decide_starts` keeps

- under Discipline.ROUNDS: makespan <= sum of L(r). By induction all of round r is over by
  L(1) + ... + L(r), because no later move takes a node that a move of round r waits for. With
  moves of equal size that is rounds x T_solo, and where moves take up to x % longer than
  planned it is up to x % more: the rounds cannot slip against each other. Where a move needs a lag
  before its wire, each round has that lag too, unless all moves at a node go the same way, as in a
  drain: then the next round's is over before the wire is free, and only the first is paid.
- under Discipline.LIST: makespan <= max over moves u-v of W(u) + W(v) - P(u, v), where P sums the
  moves between u and v. Until the last move starts, one of its two nodes is taken. (The argument
  of Coffman, Garey, Johnson and LaPaugh, "Scheduling file transfers", SIAM J. Comput. 14, 1985.)

No order beats max W(v), so LIST is below twice the optimum. The plan takes the discipline with
the lesser bound: equal sizes get ROUNDS, a few large states among many small ones get LIST.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from worldline.admissibility.bulk.demand import Demand
from worldline.admissibility.bulk.edge_colouring import colour_edges
from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.condition import PathCost
from worldline.errors import InvalidInput

Round = tuple[BulkMove, ...]


class Discipline(Enum):
    """Whether a node is kept free for its next round (ROUNDS), or never idles (LIST)."""

    ROUNDS = "rounds"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """Rounds in their order, the longest first; within a round, the largest move first.

    `makespan_ms_max` is the bound of its discipline, `makespan_ms_min` what no order beats: the
    time that the busiest node needs for its moves.
    """

    rounds: tuple[Round, ...]
    discipline: Discipline
    makespan_ms_max: float
    makespan_ms_min: float

    @property
    def moves(self) -> tuple[BulkMove, ...]:
        """Every move, in the order of the plan."""
        return tuple(move for one_round in self.rounds for move in one_round)


def plan_bulk(moves: Iterable[BulkMove], cost: PathCost) -> BulkPlan:
    """Plan the moves over paths that cost `cost` each, or less: take the slowest path's.

    At most `Demand.rounds_max` rounds. The order of `moves` does not matter.

    Raises:
        InvalidInput: two moves of one name.
    """
    by_size = sorted(moves, key=lambda move: (-move.state_bytes, move.move_id))
    names = Counter(move.move_id for move in by_size)
    for name, count in names.items():
        if count > 1:
            raise InvalidInput(f"{count} moves are called {name}", field="move_id")
    rounds = _rounds(by_size)
    rounds_ms = sum(cost.t_migrate_ms(one_round[0].state_bytes) for one_round in rounds)
    list_ms, busiest_ms = _list_bounds_ms(by_size, cost)
    return BulkPlan(
        rounds=rounds,
        discipline=Discipline.ROUNDS if rounds_ms <= list_ms else Discipline.LIST,
        makespan_ms_max=min(rounds_ms, list_ms),
        makespan_ms_min=busiest_ms,
    )


def _rounds(by_size: Sequence[BulkMove]) -> tuple[Round, ...]:
    """Largest first into the lowest colour: moves of like size share rounds, so L(r) falls fast."""
    colours = colour_edges(Demand.of([move.node_ids for move in by_size]))
    members: dict[int, list[BulkMove]] = {}
    for move, colour in zip(by_size, colours, strict=True):
        members.setdefault(colour, []).append(move)
    # Members came in the order of size, so the first is the longest.
    longest_first = sorted(members.values(), key=lambda m: (-m[0].state_bytes, m[0].move_id))
    return tuple(map(tuple, longest_first))


def _list_bounds_ms(moves: Sequence[BulkMove], cost: PathCost) -> tuple[float, float]:
    """The bound of LIST, and the busiest node's W; both 0 without a move."""
    node_ms: defaultdict[str, float] = defaultdict(float)
    pair_ms: defaultdict[frozenset[str], float] = defaultdict(float)
    for move in moves:
        move_ms = cost.t_migrate_ms(move.state_bytes)
        pair_ms[frozenset(move.node_ids)] += move_ms
        for node_id in move.node_ids:
            node_ms[node_id] += move_ms
    list_ms = max(
        (sum(node_ms[node] for node in pair) - between for pair, between in pair_ms.items()),
        default=0.0,
    )
    return list_ms, max(node_ms.values(), default=0.0)
