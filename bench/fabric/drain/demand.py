"""Demand: which states leave which nodes, on a larger cell than the paper's."""

from __future__ import annotations

from bench.fabric.cell import STATE_BYTES, Cell
from bench.fabric.streams import stream
from services.placement.drain_values import Resident, Seat
from services.placement.records import SessionState

#: Eight nodes, of which one sends slowly as in the paper's cell. States are resident here and not
#: made by a harness first, so that both ends are ready soon: a freeze and a reservation.
CELL = Cell(nodes=tuple(f"n{number}" for number in range(8)), lag_max_s=0.005)
#: Sessions of a node that is drained, and moves of a defragmentation.
SESSIONS = 12
SCATTERED = 40

Residents = tuple[Resident, ...]


def drain(cell: Cell, drained: int, sessions: int = SESSIONS) -> Residents:
    """The first nodes are emptied into any of the others."""
    leaving, staying = cell.nodes[:drained], cell.nodes[drained:]
    return tuple(
        _resident(f"bulk-{node}-{number}", node, staying)
        for node in leaving
        for number in range(sessions)
    )


def scattered(cell: Cell, seed: int, moves: int = SCATTERED) -> Residents:
    """From anywhere to anywhere, as a defragmentation is: each to one node only."""
    luck = stream(seed, "scattered")
    made = []
    for number in range(moves):
        source, target = luck.sample(cell.nodes, 2)
        made.append(_resident(f"bulk-{number}", source, (target,)))
    return tuple(made)


def _resident(session_id: str, node_id: str, targets: tuple[str, ...]) -> Resident:
    seats = tuple(Seat(target, f"engine-{target}", target) for target in targets)
    return Resident(session_id, node_id, SessionState.LIVE, STATE_BYTES, seats)
