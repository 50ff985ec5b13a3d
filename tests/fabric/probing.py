"""Probing: what a path costs is measured before anything is offered, as placement measures it.

Two sizes, so that set-up and rate can be told apart: 64 KiB, which the link carries in 6 ms, and a
whole state. Paths that share no end are measured at once, as moves use them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from statistics import median

from tests.fabric.desk import Desk
from tests.fabric.pushes import push_of
from tests.fabric.services import Services
from worldline.state.layout import flat_layout
from worldline.ticket import MovePurpose
from worldline.verdict import Verdict

SMALL_BYTES = 64 << 10

Pair = tuple[str, str]


def matchings(nodes: Sequence[str]) -> list[list[Pair]]:
    """Every path once, in groups in which no node sends or receives twice and none is duplex."""
    groups: list[list[Pair]] = []
    for step in range(1, len(nodes)):
        pairs = [(node, nodes[(at + step) % len(nodes)]) for at, node in enumerate(nodes)]
        there = [pair for pair in pairs if pair[0] < pair[1] or pair[::-1] not in pairs]
        back = [pair for pair in pairs if pair not in there]
        groups += [group for group in (there, back) if group]
    return groups


class Prober:
    """Measures paths under probes' tickets."""

    def __init__(self, services: Services, desk: Desk, size_bytes: int) -> None:
        self._services = services
        self._desk = desk
        self._sizes = (SMALL_BYTES, size_bytes)
        self._numbers = count()
        #: Of whole states, by source, in seconds.
        self._whole_s: dict[str, list[float]] = {}

    async def measure_all(self, rounds: int) -> None:
        """Every path, so many times."""
        for _ in range(rounds):
            for group in matchings(self._services.nodes):
                await asyncio.gather(*(self._admitted(*pair) for pair in group))

    async def measure(self, source: str, target: str) -> Verdict | None:
        """One path, once with each size. None when measured, else admission's verdict."""
        for size_bytes in self._sizes:
            refused = await self._push(source, target, size_bytes)
            if refused is not None:
                return refused
        return None

    @property
    def solo_s(self) -> dict[str, float]:
        """By source: the median of whole states."""
        return {source: median(times) for source, times in self._whole_s.items()}

    async def _admitted(self, source: str, target: str) -> None:
        refused = await self.measure(source, target)
        assert refused is None, f"a probe on a quiet fabric was refused: {refused}"

    async def _push(self, source: str, target: str, size_bytes: int) -> Verdict | None:
        layout = flat_layout("probe", size_bytes)
        name = f"probe-{next(self._numbers)}"
        answer = await self._desk.ask(name, layout, source, [target], MovePurpose.PROBE)
        if answer.ticket is None:
            return answer.verdict
        stats = None
        try:
            pushing = push_of(
                self._services, answer.ticket, name, layout, source=source, target=target, slot=None
            )
            async with pushing as push:
                await push.arm()
                stats = (await push.go()).stats
        finally:
            await self._desk.end(name, stats, reason="PROBE")
        if size_bytes == self._sizes[-1]:
            took_s = (stats.wire_ms + stats.verify_tail_ms) / 1e3
            self._whole_s.setdefault(source, []).append(took_s)
        return None
