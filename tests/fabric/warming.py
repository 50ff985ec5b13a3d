"""Warming: sessions move over each path before anything is counted.

A process does some things once: connections, imports, and tables for its first digests, which cost
it 70 ms of a core. Four that do so at once on two cores are late by half a second, and admission
would believe that of their paths. So of the first move on each path it hears nothing; the next ones
teach it what a commit costs.
"""

from __future__ import annotations

import asyncio

from tests.fabric.offers import Offer
from tests.fabric.probing import matchings
from tests.fabric.pushes import now_s
from tests.fabric.sweep import Decided, Load, Player, Stage
from tests.fabric.worlds import make_world


async def warm_up(stage: Stage, rounds: int) -> Load:
    """A move on each path, and `rounds` more that teach; at once, where none shares an end."""
    begun_s = now_s()
    found: list[Decided] = []
    for number in range(1 + rounds):
        for group in matchings(stage.services.nodes):
            players = []
            for source, target in group:
                move_id = f"warm-{number}-{source}-{target}"
                world = await make_world(stage.services, move_id, source, stage.size_bytes)
                offer = Offer(move_id, source, (target,), now_s() - begun_s)
                players.append(Player(stage, world, offer, begun_s, teaches=number > 0))
            await asyncio.gather(*(player.play() for player in players))
            found += [player.decided for player in players]
    return Load(0.0, begun_s, tuple(found))
