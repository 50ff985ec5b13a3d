"""Demand: the moves as an undirected multigraph over nodes, and how many rounds they need.

An edge is a move, directions are dropped, parallel edges are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """Nodes 0 to `node_count` - 1, and for every move its two different nodes."""

    node_count: int
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]]) -> Demand:
        """From named pairs; nodes are numbered in the order of their names."""
        names = sorted({name for pair in pairs for name in pair})
        number = {name: index for index, name in enumerate(names)}
        return cls(len(names), tuple((number[one], number[other]) for one, other in pairs))

    @property
    def degree_max(self) -> int:
        """D, most moves at one node: no plan has fewer rounds."""
        return max(Counter(node for edge in self.edges for node in edge).values(), default=0)

    @property
    def multiplicity_max(self) -> int:
        """mu, most moves between one pair of nodes, in both directions together."""
        return max(Counter(map(frozenset, self.edges)).values(), default=0)

    @property
    def bipartite(self) -> bool:
        """Whether the nodes fall in two sides without a move inside one, as in a drain."""
        neighbours: list[list[int]] = [[] for _ in range(self.node_count)]
        for one, other in self.edges:
            neighbours[one].append(other)
            neighbours[other].append(one)
        side: dict[int, int] = {}
        for root in range(self.node_count):
            reached = [] if root in side else [root]
            side.setdefault(root, 0)
            while reached:
                node = reached.pop()
                for neighbour in neighbours[node]:
                    if neighbour not in side:
                        side[neighbour] = 1 - side[node]
                        reached.append(neighbour)
                    elif side[neighbour] == side[node]:
                        return False
        return True

    @property
    def rounds_max(self) -> int:
        """Rounds that always suffice.

        Koenig (1916): D where the demand is bipartite. Otherwise the lesser of Vizing's (1964)
        D + mu and Shannon's (1949) floor(3*D/2).
        """
        degree_max = self.degree_max
        if self.bipartite:
            return degree_max
        return min(degree_max + self.multiplicity_max, 3 * degree_max // 2)
