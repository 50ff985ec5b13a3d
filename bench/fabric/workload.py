"""Workload: the moves of one run, in pace, and what fate has drawn for each."""

from __future__ import annotations

from dataclasses import dataclass

from bench.fabric.cell import HORIZON_S, STATE_BYTES, Cell
from bench.fabric.streams import stream

MOVES = 72
#: Of the interval between two offers. Assumed: the harness paces its decisions "cleanly".
PACE_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Offer:
    """A move that somebody wants: all that a policy may see."""

    move_id: str
    #: Where the state is, or can be had; whoever does not choose takes the first.
    sources: tuple[str, ...]
    size_bytes: int
    horizon_s: float
    offered_s: float


@dataclass(frozen=True, slots=True)
class Draw:
    """What nobody knows at the decision: the lag to the wire, and what the flow reaches."""

    lag_s: float
    cap_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Offers in order of time, and the draw of each move."""

    offers: tuple[Offer, ...]
    draws: dict[str, Draw]


def draw(cell: Cell, seed: int, move_id: str) -> Draw:
    """A move's draw: by its name, so that it is the same under every policy."""
    luck = stream(seed, f"move/{move_id}")
    slower = min(0.5, abs(luck.gauss(0.0, cell.flow_jitter)))
    return Draw(
        lag_s=luck.uniform(0.0, cell.lag_max_s),
        cap_bytes_per_s=cell.flow_bytes_per_s * (1.0 - slower),
    )


def make_workload(
    cell: Cell, load: float, seed: int, *, pinned: bool = False, moves: int = MOVES
) -> Workload:
    """`moves` whole states at `load` times the cell's capacity.

    Offers are paced, as the decisions of the paper's harness are, and
    Poisson arrivals would reject more than its controller did. Every node comes first
    among the sources once in each round, in a drawn order; where sessions are `pinned` it is the
    only one. The paper's harness makes each payload where it is sent from, so its states are had
    anywhere.
    """
    arrivals, turns = stream(seed, "arrivals"), stream(seed, "sources")
    interval_s = 1.0 / (load * cell.capacity_per_s)
    offers: list[Offer] = []
    turn: list[str] = []
    for number in range(moves):
        if not turn:
            turn = turns.sample(cell.nodes, len(cell.nodes))
        offered_s = (number + PACE_JITTER * arrivals.random()) * interval_s
        first = turn.pop()
        others = () if pinned else tuple(node for node in cell.nodes if node != first)
        sources = (first, *others)
        offers.append(Offer(f"move-{number}", sources, STATE_BYTES, HORIZON_S, offered_s))
    draws = {offer.move_id: draw(cell, seed, offer.move_id) for offer in offers}
    return Workload(tuple(offers), draws)
