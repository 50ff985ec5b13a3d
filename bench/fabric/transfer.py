"""Transfer: one move alone on a quiet fabric, as a probe is."""

from __future__ import annotations

from bench.fabric.flow import Flow, new_flow
from bench.fabric.fluid import Fabric
from bench.fabric.workload import Draw, Offer


def flow_of(offer: Offer, source: str, target: str, luck: Draw) -> Flow:
    """The flow that carries an offer from one node to another."""
    return new_flow(offer.move_id, source, target, float(offer.size_bytes), luck.cap_bytes_per_s)


def transfer_alone(fabric: Fabric, offer: Offer, target: str, luck: Draw) -> float:
    """Seconds from the offer's first source where nothing else is on the fabric."""
    assert not fabric.flows
    begun_s = fabric.now_s
    fabric.start(flow_of(offer, offer.sources[0], target, luck))
    while fabric.flows:
        fabric.advance(fabric.next_s())
    return fabric.now_s - begun_s
