"""Partial colouring: some edges of a multigraph have a colour, no two at a node the same.

The colours that a node misses are bits of one integer, so that "do these two nodes miss a common
colour" is one AND, however many colours there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worldline.errors import InvariantBroken


class PartialColouring:
    """Edges with two nodes each, and of each edge a colour from 0 to `colours` - 1, or none."""

    def __init__(self, node_count: int, edges: Sequence[tuple[int, int]], colours: int) -> None:
        self.edges = edges
        self.colours = colours
        #: Colour by edge; None while it has none.
        self.colour_of: list[int | None] = [None] * len(edges)
        #: Edge by colour, at each node.
        self.edge_at: list[dict[int, int]] = [{} for _ in range(node_count)]
        #: Colours of a node's edges to each neighbour, as bits.
        self.colours_to: list[dict[int, int]] = [{} for _ in range(node_count)]
        #: Bit c is set where no edge at the node has colour c.
        self.missing: list[int] = [(1 << colours) - 1] * node_count

    def add_colour(self) -> None:
        """One colour more; every node misses it."""
        bit = 1 << self.colours
        self.missing = [missing | bit for missing in self.missing]
        self.colours += 1

    def other_end(self, edge: int, node: int) -> int:
        """The edge's node that is not `node`."""
        one, other = self.edges[edge]
        return other if node == one else one

    def colour(self, edge: int, colour: int) -> None:
        """Give an edge without a colour one that both its nodes miss.

        Raises:
            InvariantBroken: it has a colour, or a node has that one already.
        """
        bit = 1 << colour
        one, other = self.edges[edge]
        if self.colour_of[edge] is not None or not self.missing[one] & self.missing[other] & bit:
            raise InvariantBroken(f"edge {edge} cannot have colour {colour}")
        self.colour_of[edge] = colour
        for node, neighbour in ((one, other), (other, one)):
            self.edge_at[node][colour] = edge
            self.missing[node] ^= bit
            self.colours_to[node][neighbour] = self.colours_to[node].get(neighbour, 0) | bit

    def uncolour(self, edge: int) -> int:
        """Take an edge's colour away; returns it.

        Raises:
            InvariantBroken: it has none.
        """
        colour = self.colour_of[edge]
        if colour is None:
            raise InvariantBroken(f"edge {edge} has no colour")
        self.colour_of[edge] = None
        one, other = self.edges[edge]
        for node, neighbour in ((one, other), (other, one)):
            del self.edge_at[node][colour]
            self.missing[node] ^= 1 << colour
            self.colours_to[node][neighbour] ^= 1 << colour
        return colour

    def chain(self, node: int, first: int, second: int) -> tuple[list[int], int]:
        """The Kempe chain from a node that misses `second`: edges of two colours in turn.

        Returns its edges, `first` coloured first, and the node where it ends: another than
        `node`, unless the chain is empty.
        """
        edges: list[int] = []
        wanted, then = first, second
        while (edge := self.edge_at[node].get(wanted)) is not None:
            edges.append(edge)
            node = self.other_end(edge, node)
            wanted, then = then, wanted
        return edges, node

    def swap(self, chain: Sequence[int], first: int, second: int) -> None:
        """Exchange the two colours of a whole chain: no node gets a colour twice."""
        swapped = [(edge, first + second - self.uncolour(edge)) for edge in chain]
        for edge, colour in swapped:
            self.colour(edge, colour)


def lowest(colours: int) -> int:
    """The lowest of the colours in a set of at least one."""
    return (colours & -colours).bit_length() - 1


def each(colours: int) -> Iterator[int]:
    """The colours of a set, lowest first."""
    while colours:
        yield lowest(colours)
        colours &= colours - 1
