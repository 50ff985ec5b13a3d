"""Edge colouring: a colour for each edge of a multigraph, so that no node has one twice.

Written here, because no kept library does it: networkx colours nodes only, and rustworkx has
Misra and Gries for graphs without parallel edges and Alon for bipartite ones, which leaves out
a defragmentation. The method is Vizing's with multi-fans (`multifan.py` cites the source), begun
with D colours, and with one more only where a maximal multi-fan proves that they are fewer than
the bound. One method therefore keeps all three bounds of `Demand.rounds_max`: on bipartite
demand the chain of Koenig's proof always succeeds, because it would close an odd cycle otherwise.
"""

from __future__ import annotations

from worldline.admissibility.bulk.demand import Demand
from worldline.admissibility.bulk.multifan import Multifan
from worldline.admissibility.bulk.partial_colouring import PartialColouring, lowest


def colour_edges(demand: Demand) -> tuple[int, ...]:
    """A colour for each edge, in their order; at most `demand.rounds_max` of them, from 0.

    Edges are coloured one by one with the lowest colour that is free at both nodes, so early edges
    tend to share low colours. Equal demand gives equal colours.
    """
    colouring = PartialColouring(demand.node_count, demand.edges, demand.degree_max)
    for edge in range(len(demand.edges)):
        while not _colour_edge(colouring, edge):
            colouring.add_colour()
    return tuple(colour for colour in colouring.colour_of if colour is not None)


def _colour_edge(colouring: PartialColouring, edge: int) -> bool:
    """Colour one edge, recolouring others where that helps; False where it takes a new colour."""
    one, other = colouring.edges[edge]
    if common := colouring.missing[one] & colouring.missing[other]:
        colouring.colour(edge, lowest(common))
        return True
    if _colour_by_chain(colouring, edge):
        return True
    fans = [Multifan(colouring, edge, centre) for centre in (one, other)]
    return any(fan.extend() for fan in fans) or any(fan.swap() for fan in fans)


def _colour_by_chain(colouring: PartialColouring, edge: int) -> bool:
    """Koenig's step: swap a chain from one node so that it misses what the other one misses."""
    one, other = colouring.edges[edge]
    spare, given = lowest(colouring.missing[one]), lowest(colouring.missing[other])
    chain, end = colouring.chain(other, spare, given)
    if end == one:
        return False
    colouring.swap(chain, spare, given)
    colouring.colour(edge, spare)
    return True
