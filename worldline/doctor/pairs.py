"""Pairs: in which order the paths of a fleet are measured, where not all may fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def ordered_pairs(nodes: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Every node to every other, so that each node sends and receives once in every round.

    Whoever stops early has looked at every node's interfaces.
    """
    names = tuple(nodes)
    count = len(names)
    return tuple(
        (names[at], names[(at + distance) % count])
        for distance in range(1, count)
        for at in range(count)
    )
