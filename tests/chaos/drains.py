"""Drains: an operator who empties nodes and gives them back, while all else goes on."""

from __future__ import annotations

import asyncio
import random
import time

from tests.chaos.journal import Journal
from tests.oracles import BOUND_S
from worldline.errors import InvariantBroken, WorldlineError
from worldline.sdk import Client
from worldline.sdk.drain import DrainRecord

_AGAIN_S = 0.5
_DEADLINE_S = 20.0
#: Between two drains, in the mean.
_CALM_S = 12.0
#: Of a session that is on a node, and no longer where that has been drained.
_PRESENT = ("live", "moving")


class Operator:
    """Drains one node after the other; none is drained when `run` returns."""

    def __init__(self, client: Client, journal: Journal, nodes: tuple[str, ...], seed: int) -> None:
        self._client = client
        self._journal = journal
        self._nodes = nodes
        self._drawn = random.Random(seed)

    async def run(self, until_s: float) -> None:
        """Until `until_s` on the monotonic clock."""
        while True:
            calm_s = self._drawn.expovariate(1.0 / _CALM_S)
            if time.monotonic() + calm_s + _DEADLINE_S >= until_s:
                return
            await asyncio.sleep(calm_s)
            node_id = self._drawn.choice(self._nodes)
            self._journal.note(f"drain {node_id}")
            try:
                await self._drain(node_id)
            finally:
                await self._undrain(node_id)

    async def _drain(self, node_id: str) -> None:
        try:
            async with asyncio.timeout(_DEADLINE_S + BOUND_S):
                await self._client.drain(node_id, deadline_s=_DEADLINE_S)
                async for records in self._client.watch_drain(node_id):
                    if records and records[0].ended:
                        await self._check(records[0])
            self._journal.ended("drain", records[0].state if records else "undrained")
        except InvariantBroken as error:
            self._journal.found(f"drain of {node_id}: {error}")
        except WorldlineError as error:
            self._journal.ended("drain", error.reason)
        except TimeoutError:
            self._journal.found(f"the drain of {node_id} has not ended long after its deadline")

    async def _check(self, record: DrainRecord) -> None:
        """Who was told that nobody is left finds nobody, and nobody comes."""
        if not record.drained:
            return
        present = [
            f"{one.session_id} is {one.state}"
            for one in await self._client.sessions()
            if one.node_id == record.node_id and one.state in _PRESENT
        ]
        (now,) = await self._client.drains(record.node_id) or (None,)
        if present and now is not None and now.drained:
            self._journal.found(f"{record.node_id} is drained, and {', '.join(present)}")

    async def _undrain(self, node_id: str) -> None:
        async with asyncio.timeout(2 * BOUND_S):
            while True:
                try:
                    await self._client.undrain(node_id)
                    return
                except WorldlineError:
                    await asyncio.sleep(_AGAIN_S)
