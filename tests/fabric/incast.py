"""Incast: K movers send to one receiver at once, and nobody has asked whether they may."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from bench.office import TicketOffice
from tests.fabric.namespaces import Fabric, dropped_packets
from tests.fabric.pushes import Landed, Push, now_s, push_of
from tests.fabric.services import Services
from tests.fabric.worlds import World, make_world, release
from worldline.ticket import ticket_to_proto


@dataclass(frozen=True, slots=True)
class Mover:
    """One of the K: from the go until the target had verified its state."""

    source: str
    ended_ms: float
    rate_bytes_per_s: float
    on_time: bool


@dataclass(frozen=True, slots=True)
class Round:
    """K moves at once; `dropped_packets` are those that found no room in the receiver's port."""

    receiver: str
    movers: tuple[Mover, ...]
    aggregate_bytes_per_s: float
    dropped_packets: int

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return asdict(self)


async def incast(
    fabric: Fabric,
    services: Services,
    office: TicketOffice,
    *,
    fan_ins: tuple[int, ...],
    rounds: int,
    size_bytes: int,
    horizon_ms: float,
) -> list[Round]:
    """`rounds` rounds for each K, into the last node from the first K. A first one, alone, is not
    reported: it pays for connections.
    """
    *sources, receiver = services.nodes
    worlds = [await make_world(services, f"world-{name}", name, size_bytes) for name in sources]
    found: list[Round] = []
    for source in worlds:
        await _round(fabric, services, office, [source], receiver, horizon_ms)
    for count in fan_ins:
        for _ in range(rounds):
            senders = worlds[:count]
            found.append(await _round(fabric, services, office, senders, receiver, horizon_ms))
    for world in worlds:
        await release(services, world, world.node, world.slot)
    return found


async def _round(
    fabric: Fabric,
    services: Services,
    office: TicketOffice,
    worlds: list[World],
    receiver: str,
    horizon_ms: float,
) -> Round:
    dropped = dropped_packets(fabric, receiver)
    async with AsyncExitStack() as stack:
        pushes: list[Push] = []
        for world in worlds:
            ticket = office.ticket(world.layout, world.session_id, world.node, receiver)
            push = await stack.enter_async_context(
                push_of(
                    services,
                    ticket_to_proto(ticket),
                    world.session_id,
                    world.layout,
                    source=world.node,
                    target=receiver,
                    slot=world.slot,
                )
            )
            await push.arm()
            pushes.append(push)
        # All are armed: one call of the loop lets them go.
        begun_s = now_s()
        landed = await asyncio.gather(*(push.go() for push in pushes))
    for world, push, each in zip(worlds, pushes, landed, strict=True):
        assert each.outcome.receipt.digests == world.digests, "what landed is not what was sent"
        await release(services, world, receiver, push.slot)
    movers = tuple(
        _mover(world, each, begun_s, horizon_ms) for world, each in zip(worlds, landed, strict=True)
    )
    sent_bytes = sum(world.layout.extent_bytes for world in worlds)
    took_s = max(each.verified_s for each in landed) - begun_s
    dropped = dropped_packets(fabric, receiver) - dropped
    return Round(receiver, movers, sent_bytes / took_s, dropped)


def _mover(world: World, landed: Landed, begun_s: float, horizon_ms: float) -> Mover:
    took_s = landed.verified_s - begun_s
    rate = world.layout.extent_bytes / took_s
    return Mover(world.node, took_s * 1e3, rate, took_s * 1e3 < horizon_ms)
