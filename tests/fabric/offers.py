"""Offers: the moves that one load brings, in pace, as the paper's harness offers its 72."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.fabric.streams import stream
from bench.fabric.workload import PACE_JITTER


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that is to leave its node, and when somebody wants that."""

    move_id: str
    source: str
    #: Nearest first; here all are as near.
    targets: tuple[str, ...]
    #: Since the first could have come, in seconds.
    offered_s: float


def offers_of(
    nodes: Sequence[str], moves: int, load: float, capacity_per_s: float, seed: int
) -> list[Offer]:
    """`moves` offers at `load` times what the cell can carry; every node's turn once a round."""
    arrivals, turns = stream(seed, "arrivals"), stream(seed, "sources")
    interval_s = 1.0 / (load * capacity_per_s)
    offers: list[Offer] = []
    turn: list[str] = []
    for number in range(moves):
        turn = turn or turns.sample(list(nodes), len(nodes))
        source = turn.pop()
        at = nodes.index(source)
        targets = (*nodes[at + 1 :], *nodes[:at])
        offered_s = (number + PACE_JITTER * arrivals.random()) * interval_s
        offers.append(Offer(f"move-{load:g}-{number}", source, targets, offered_s))
    return offers
