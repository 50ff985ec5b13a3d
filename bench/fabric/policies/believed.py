"""Believed moves: what a controller thinks is under way when it counts decisions, not wires.

The paper's harness generates each payload before it sends, so its controllers charge a move from
the decision for as long as their model says. That wires lag, and that a collapse outlasts the
model, they do not see.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Belief:
    source: str
    target: str
    ends_s: float


class Believed:
    """Moves by their predicted ends."""

    def __init__(self) -> None:
        self._moves: list[_Belief] = []

    def add(self, source: str, target: str, ends_s: float) -> None:
        """A move was admitted."""
        self._moves.append(_Belief(source, target, ends_s))

    def forget_ended(self, now_s: float) -> None:
        """Drop what should be over."""
        self._moves = [move for move in self._moves if move.ends_s > now_s]

    def into(self) -> Counter[str]:
        """Moves under way by receiver."""
        return Counter(move.target for move in self._moves)

    def out_of(self) -> Counter[str]:
        """Moves under way by sender."""
        return Counter(move.source for move in self._moves)
