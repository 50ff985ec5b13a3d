"""Demand: which states leave which nodes, on a larger cell than the paper's."""

from __future__ import annotations

from bench.fabric.cell import STATE_BYTES, Cell
from bench.fabric.streams import stream
from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan, plan_bulk
from worldline.admissibility.condition import PathCost

#: Eight nodes, of which one sends slowly as in the paper's cell. States are resident here and not
#: made by a harness first, so that both ends are ready soon: a freeze and a reservation.
CELL = Cell(nodes=tuple(f"n{number}" for number in range(8)), lag_max_s=0.005)
#: Sessions of a node that is drained, and moves of a defragmentation.
SESSIONS = 12
SCATTERED = 40


def drain(cell: Cell, drained: int, sessions: int = SESSIONS) -> list[BulkMove]:
    """The first nodes are emptied into all others in turn."""
    leaving, staying = cell.nodes[:drained], cell.nodes[drained:]
    return [
        BulkMove(
            move_id=f"bulk-{node}-{number}",
            source_node_id=node,
            target_node_id=staying[(place * sessions + number) % len(staying)],
            state_bytes=STATE_BYTES,
        )
        for place, node in enumerate(leaving)
        for number in range(sessions)
    ]


def scattered(cell: Cell, seed: int, moves: int = SCATTERED) -> list[BulkMove]:
    """From anywhere to anywhere, as a defragmentation is."""
    luck = stream(seed, "scattered")
    made = []
    for number in range(moves):
        source, target = luck.sample(cell.nodes, 2)
        made.append(BulkMove(f"bulk-{number}", source, target, STATE_BYTES))
    return made


def plan(cell: Cell, moves: list[BulkMove]) -> BulkPlan:
    """As it is planned on the slowest path of the demand."""
    slowest = min(cell.solo_bytes_per_s(move.source_node_id) for move in moves)
    return plan_bulk(moves, PathCost(slowest))
