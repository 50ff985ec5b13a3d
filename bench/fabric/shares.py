"""Shares: max-min fair rates of flows over senders' egress and receivers' ingress."""

from __future__ import annotations

from collections.abc import Sequence

from bench.fabric.cell import Cell
from bench.fabric.flow import Flow

#: Link names: the direction keeps a node's two links apart.
_Link = tuple[str, str]


class _Filling:
    """Progressive filling: what links have left, and which flows still want more."""

    def __init__(self, flows: Sequence[Flow], cell: Cell) -> None:
        self.wanting = {id(flow): flow for flow in flows}
        self.on_link: dict[_Link, list[Flow]] = {}
        for flow in flows:
            for link in _links(flow):
                self.on_link.setdefault(link, []).append(flow)
        self.left: dict[_Link, float] = {}
        self.count: dict[_Link, int] = {}
        for (side, node), on_it in self.on_link.items():
            self.left[side, node] = cell.egress(node) if side == "out" else cell.ingress_bytes_per_s
            self.count[side, node] = len(on_it)

    def fix(self, flow: Flow, rate_bytes_per_s: float) -> None:
        flow.rate_bytes_per_s = rate_bytes_per_s
        del self.wanting[id(flow)]
        for link in _links(flow):
            # Rounding must not leave a link in debt, or a later flow would run backwards.
            self.left[link] = max(0.0, self.left[link] - rate_bytes_per_s)
            self.count[link] -= 1

    def tightest(self) -> tuple[float, _Link]:
        """The link with the smallest equal share, and that share."""
        shares = ((self.left[link] / n, link) for link, n in self.count.items() if n)
        return min(shares)


def set_rates(flows: Sequence[Flow], cell: Cell) -> None:
    """Set the rate of every flow: 0 where it is stalled, else its max-min fair share.

    A stalled flow takes part nowhere: it neither loads its links nor counts as fan-in.
    """
    moving = [flow for flow in flows if flow.moving]
    for flow in flows:
        flow.rate_bytes_per_s = 0.0
    filling = _Filling(moving, cell)
    while filling.wanting:
        share, link = filling.tightest()
        capped = [flow for flow in filling.wanting.values() if flow.cap_bytes_per_s <= share]
        if capped:
            for flow in capped:
                filling.fix(flow, flow.cap_bytes_per_s)
            continue
        for flow in filling.on_link[link]:
            if id(flow) in filling.wanting:
                filling.fix(flow, share)


def _links(flow: Flow) -> tuple[_Link, _Link]:
    return ("out", flow.source), ("in", flow.target)
