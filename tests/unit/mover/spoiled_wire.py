"""A wire between two movers that a test can spoil at either end, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from services.mover.slots import SlotRole
from services.mover.transport.base import Transport
from services.mover.transport.lanes import Lane
from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import MEBIBYTE, Cluster, layout_of
from tests.unit.mover.faulty import FaultyTransport, SendHook
from worldline.errors import (
    Conflict,
)
from worldline.v1 import move_pb2, mover_pb2

FACTORIES: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "in-place": UcxTransport,
    "tcp": lambda: UcxTransport(lane=Lane.TCP),
    "on-the-loop": lambda: UcxTransport(plane=LoopPlane),
}
LAYOUT = layout_of()
#: One slot each: the next move takes the one that this move has left.
SIZES = {"slot_count": 1, "slot_bytes": 12 * MEBIBYTE}
#: Nobody waits for more than its lease and this, on a machine with much else to do.
SLACK_S = 60.0
LEASE_S = 0.4
#: Within this everything lands, where it is to have landed when the lease ends.
LANDED_S = 8.0
#: Longer than that: what ends within the slack has not ended by its lease.
LONG_LEASE_S = 60.0


def unchanged(_: int, view: memoryview) -> memoryview:
    return view


@dataclass
class Wire:
    """Movers `a` and `b` on a wire that a test can spoil at either end."""

    cluster: Cluster
    ends: dict[str, FaultyTransport]
    slot: move_pb2.SlotRef

    async def push(self, lease_s: float, **changes: Any) -> tuple[Any, mover_pb2.PushOutcome]:
        """One push; the reservation as well."""
        reserved, pushing = await self.begin(lease_s, **changes)
        return reserved, await pushing

    async def begin(
        self, lease_s: float, **changes: Any
    ) -> tuple[mover_pb2.ReserveResponse, asyncio.Future[mover_pb2.PushOutcome]]:
        """The same under way."""
        ticket = self.cluster.ticket(LAYOUT, lease_ms=round(lease_s * 1e3), valid_for_ms=60_000)
        reserved = await self.cluster.reserve(ticket, LAYOUT)

        async def outcome() -> mover_pb2.PushOutcome:
            manifest, name = self.cluster.manifest(LAYOUT), reserved.reservation_id
            where = ticket, manifest, name, self.slot
            return (await self.cluster.push(*where, timeout_s=2 * LONG_LEASE_S, **changes))[0]

        return reserved, asyncio.ensure_future(outcome())

    async def check_ended(self, reserved: mover_pb2.ReserveResponse) -> None:
        """Nothing was installed or ever can be; both slots serve again; nothing is left."""
        source, target = self.cluster.nodes["a"], self.cluster.nodes["b"]
        await target.until_free(reserved.slot)
        with pytest.raises(Conflict) as caught:
            await self.cluster.promote(reserved.reservation_id, reserved.slot)
        assert caught.value.reason == "RESERVATION_ENDED"
        assert source.role(self.slot) is SlotRole.LIVE
        await self.check_serves()

    async def check_serves(self) -> None:
        """The next move goes through, the source's slot can be given back at once."""
        for end in self.ends.values():
            end.on_send = unchanged
        reserved, outcome = await self.push(LONG_LEASE_S)
        assert outcome.digests == outcome.receipt.digests
        assert await self.cluster.release("b", reserved.slot)
        for name in ("a", "b"):
            node = self.cluster.nodes[name]
            await node.until_quiet()
            census = node.runtime.census()
            assert census["endpoints"] == census["requests_outstanding"] == census["landings"] == 0
            assert all(state.pins == 0 for state in node.runtime.slots.states())
        assert await self.cluster.release("a", self.slot)
        assert self.cluster.nodes["a"].role(self.slot) is SlotRole.FREE


@asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """What is inside neither hangs nor outlasts the limit."""
    async with asyncio.timeout(limit_s + SLACK_S):
        yield


def instead_of(index: int, change: Callable[[memoryview], memoryview | None]) -> SendHook:
    """Send something else, or nothing, in place of one message of a transfer."""
    return lambda at, view: change(view) if at == index else view
