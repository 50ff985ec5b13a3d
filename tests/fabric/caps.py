"""Caps: whether two moves ever held a wire at once that only one may hold. Pure.

What is compared is inside of what was held: from when the driver had heard of the grant until the
source's own time from the go to the target's answer is over, counted from before the go was sent.
The target gives its ingress back when it has verified, and its answer is on its way then: that way
is taken off, and for how long the move's processes had no core. Two that overlap here have
overlapped there, however slow the driver was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

Move = Mapping[str, Any]
#: The way of the target's answer where nothing is lost: a packet behind those of acknowledgements.
ANSWER_S = 0.005


def overlaps(moves: Iterable[Move]) -> list[str]:
    """A line for each two moves at once into a node, out of a node, or both ways of a pair."""
    moved = [move for move in moves if move["verified_s"] is not None]
    return [
        f"{one['move_id']} and {other['move_id']} {how}"
        for one, other in combinations(moved, 2)
        if max(one["granted_s"], other["granted_s"]) < min(_end_s(one), _end_s(other))
        for how in _shared(one, other)
    ]


def _end_s(move: Move) -> float:
    return float(move["went_s"] + (move["total_ms"] - move["starved_ms"]) / 1e3 - ANSWER_S)


def _shared(one: Move, other: Move) -> list[str]:
    found = []
    if one["target"] == other["target"]:
        found.append(f"into {one['target']}")
    if one["source"] == other["source"]:
        found.append(f"out of {one['source']}")
    if (one["source"], one["target"]) == (other["target"], other["source"]):
        found.append(f"between {one['source']} and {one['target']}, both ways")
    return found
