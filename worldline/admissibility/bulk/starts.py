"""Starts: which bulk moves may start now, while interactive moves go first.

A node takes part in one move at a time, bulk or interactive, whichever its direction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan, Discipline
from worldline.errors import InvariantBroken


class WaitReason(Enum):
    """What a bulk move waits for: an interactive move, a bulk move, or an earlier round's turn."""

    INTERACTIVE = "interactive"
    BULK = "bulk"
    ROUND = "round"


@dataclass(frozen=True, slots=True)
class Starts:
    """The moves to start at once and those that wait, with why; both in the order of the plan."""

    start: tuple[BulkMove, ...]
    wait: tuple[tuple[BulkMove, WaitReason], ...]


def decide_starts(
    plan: BulkPlan,
    begun_move_ids: Collection[str],
    running_move_ids: Collection[str],
    interactive_node_ids: Collection[str],
) -> Starts:
    """Decide again whenever a move has ended, bulk or interactive.

    `begun_move_ids` are the plan's moves that run or are over (one that failed and is to be tried
    again is not among them), `running_move_ids` those that run, `interactive_node_ids` the nodes
    of interactive moves that run or want to. Sets, for speed.

    A move starts where neither of its nodes is taken; of two that want one node, that of the
    earlier round. The current round, the first with a move to start, is never held up by a later
    one. Under Discipline.ROUNDS a move that waits for bulk alone keeps both its nodes from later
    rounds. One that waits for an interactive move keeps none: its other node's bulk goes on, so
    wherever no bulk move runs and a move's nodes are free, some bulk move starts.

    Raises:
        InvariantBroken: a move runs that has not begun, or two run at one node.
    """
    taken = _nodes_of_running(plan, begun_move_ids, running_move_ids)
    held: set[str] = set()
    start: list[BulkMove] = []
    wait: list[tuple[BulkMove, WaitReason]] = []
    for move in plan.moves:
        if move.move_id in begun_move_ids:
            continue
        reason = _wait_reason(move, interactive_node_ids, taken, held)
        if reason is None:
            start.append(move)
            taken.update(move.node_ids)
            continue
        wait.append((move, reason))
        if plan.discipline is Discipline.ROUNDS and reason is not WaitReason.INTERACTIVE:
            held.update(move.node_ids)
    return Starts(tuple(start), tuple(wait))


def _nodes_of_running(
    plan: BulkPlan, begun_move_ids: Collection[str], running_move_ids: Collection[str]
) -> set[str]:
    taken: set[str] = set()
    for move in plan.moves:
        if move.move_id not in running_move_ids:
            continue
        if move.move_id not in begun_move_ids:
            raise InvariantBroken(f"move {move.move_id} runs and has not begun")
        if not taken.isdisjoint(move.node_ids):
            raise InvariantBroken(f"move {move.move_id} runs on a node that another one has")
        taken.update(move.node_ids)
    return taken


def _wait_reason(
    move: BulkMove, interactive: Collection[str], taken: set[str], held: set[str]
) -> WaitReason | None:
    """None where it may start. Interactive counts first: only what it blocks holds no node."""
    source, target = move.source_node_id, move.target_node_id
    if source in interactive or target in interactive:
        return WaitReason.INTERACTIVE
    if source in taken or target in taken:
        return WaitReason.BULK
    if source in held or target in held:
        return WaitReason.ROUND
    return None
