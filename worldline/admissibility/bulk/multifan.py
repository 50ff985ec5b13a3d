"""Multi-fan: the edges at one node that could hand their colours on to an edge that has none.

Source: Stiebitz, Scheide, Toft and Favrholdt, "Graph Edge Coloring" (Wiley 2012), section 2.1,
after Vizing (1964). A multi-fan at a centre x begins with the uncoloured edge; a further edge
belongs to it where an earlier edge's outer node misses its colour. Shifting colours towards the
uncoloured edge frees the last one's, so x must only find a new colour for that one. It does if

(a) x and an outer node miss a common colour: that one; or
(b) x misses a, an outer node y misses b, and the a-b chain from y does not end at x: swapping it
    makes y miss a, which is (a); or
(c) two outer nodes miss a common colour b: the a-b chain from x ends at one node at most, so one
    of the two is (b).

Where none holds of a maximal multi-fan, the sets that x and its outer nodes miss are disjoint.
Counting them shows that there are fewer colours than D + mu, and fewer than floor(3*D/2).
"""

from __future__ import annotations

from itertools import islice

from worldline.admissibility.bulk.partial_colouring import PartialColouring, each, lowest
from worldline.errors import InvariantBroken

#: Chains that (b) is tried on for one fan. The bounds need none of them, they only save a colour
#: here and there; without a limit two nodes that miss thousands of colours each would take hours.
CHAINS_TRIED_MAX = 256


class Multifan:
    """The maximal multi-fan at `centre` for an edge there that has no colour."""

    def __init__(self, colouring: PartialColouring, edge: int, centre: int) -> None:
        self._colouring = colouring
        self._centre = centre
        #: First edge of the fan to each outer node, in the order of the fan.
        self._edge_to: dict[int, int] = {colouring.other_end(edge, centre): edge}
        #: The outer node that misses an edge's colour; the edge without a colour has none.
        self._giver: dict[int, int] = {}

    def extend(self) -> bool:
        """Grow it until (a) or (c) colours the edge: True. Maximal without: False."""
        table, centre = self._colouring, self._centre
        outer = list(self._edge_to)
        seen = 0  # what the outer nodes up to here miss
        for node in outer:  # grows below
            missing = table.missing[node]
            if common := missing & table.missing[centre]:
                self._shift(node, lowest(common))
                return True
            if common := missing & seen:
                self._shift_one_of(outer, node, lowest(common))
                return True
            seen |= missing
            for neighbour, colours in table.colours_to[centre].items():
                if neighbour not in self._edge_to and (common := colours & missing):
                    edge = table.edge_at[centre][lowest(common)]
                    self._edge_to[neighbour] = edge
                    self._giver[edge] = node
                    outer.append(neighbour)
        return False

    def swap(self) -> bool:
        """After `extend` said False: colour the edge by (b), if a chain that is tried allows it."""
        spares = list(islice(each(self._colouring.missing[self._centre]), CHAINS_TRIED_MAX))
        pairs = (
            (node, given) for node in self._edge_to for given in each(self._colouring.missing[node])
        )
        tried = islice(
            ((node, spare, given) for node, given in pairs for spare in spares), CHAINS_TRIED_MAX
        )
        return any(self._swap_and_shift(node, spare, given) for node, spare, given in tried)

    def _shift_one_of(self, outer: list[int], node: int, given: int) -> None:
        """Case (c): `node` and one before it miss `given`.

        The earlier one is tried first: its place in the fan, and that of those before it, then
        depend on no node of the chain that is swapped.
        """
        spare = lowest(self._colouring.missing[self._centre])
        earlier = next(other for other in outer if self._colouring.missing[other] >> given & 1)
        if not any(self._swap_and_shift(either, spare, given) for either in (earlier, node)):
            raise InvariantBroken(f"a chain from node {self._centre} ends twice")

    def _swap_and_shift(self, node: int, spare: int, given: int) -> bool:
        """Case (b) for one outer node; False, and nothing done, where its chain ends at x."""
        chain, end = self._colouring.chain(node, spare, given)
        if end == self._centre:
            return False
        self._colouring.swap(chain, spare, given)
        self._shift(node, spare)
        return True

    def _shift(self, node: int, colour: int) -> None:
        """Give the edge to `node` that colour, its old one to its giver's edge, and so on."""
        path = [self._edge_to[node]]
        while (giver := self._giver.get(path[-1])) is not None:
            path.append(self._edge_to[giver])
        colours = [colour, *(self._colouring.uncolour(edge) for edge in path[:-1])]
        for edge, new in zip(path, colours, strict=True):
            self._colouring.colour(edge, new)
