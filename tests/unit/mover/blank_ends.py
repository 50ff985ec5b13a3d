"""Blank ends: two movers over any kinds of memory, and a state with zeros in its middle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from services.mover.memory.base import SlotMemory
from tests.unit.fakecuda import bytes_at, fake_cuda
from tests.unit.mover.cluster import MEBIBYTE, Cluster, start_admission, start_node
from tests.unit.mover.conftest import TRANSPORTS
from worldline.state.layout import Layout
from worldline.ticket import SignedTicket
from worldline.v1 import move_pb2, mover_pb2

#: Written, zeros over several granules, written; borders fall within granules.
SIZES = (2 * MEBIBYTE + 5, 6 * MEBIBYTE + 123, 2 * MEBIBYTE)
GRANULE_COUNT = 11
#: The granules that lie in the second leaf alone.
BLANK_RUN = (3, 5)
#: Transport, device of the source, device of the target.
WAYS = (
    ("memory", "cpu", "cpu"),
    ("ucx", "cpu", "cpu"),
    ("memory", "cuda:0", "cuda:0"),
    ("ucx", "cuda:0", "cuda:1"),
    ("memory", "cuda:0", "cpu"),
    ("memory", "cpu", "cuda:1"),
)


class Ends(Cluster):
    """Two movers whose slots rest on any device."""

    def memory(self, node_id: str, slot: move_pb2.SlotRef) -> SlotMemory:
        return self.nodes[node_id].runtime._memories[slot.slot_index]

    def view(self, node_id: str, slot: move_pb2.SlotRef) -> memoryview:
        whole = super().view(node_id, slot)
        return whole if isinstance(whole, memoryview) else bytes_at(whole.address, whole.nbytes)

    async def ready(
        self, layout: Layout
    ) -> tuple[SignedTicket, move_pb2.SlotRef, mover_pb2.ReserveResponse]:
        """A state with a leaf of zeros at `a`, and a slot at `b` where another state has been."""
        slot = await self.live_slot(layout)
        self.view("a", slot)[SIZES[0] : SIZES[0] + SIZES[1]] = bytes(SIZES[1])
        ticket = self.ticket(layout)
        reserved = await self.reserve(ticket, layout)
        used = self.view("b", reserved.slot)
        used[:] = b"\xa5" * used.nbytes
        return ticket, slot, reserved

    def equal(self, layout: Layout, slot: move_pb2.SlotRef, landed: move_pb2.SlotRef) -> bool:
        extent_bytes = layout.extent_bytes
        return self.view("a", slot)[:extent_bytes] == self.view("b", landed)[:extent_bytes]


@asynccontextmanager
async def ends(
    way: tuple[str, str, str], patch: pytest.MonkeyPatch, directory: Path
) -> AsyncIterator[Ends]:
    """Movers `a` and `b`; devices are a fake CUDA's, of which nothing is left."""
    transport, source, target = way
    with fake_cuda(patch) as fake:
        async with AsyncExitStack() as stack:
            admission, address = await start_admission(stack)
            nodes = {
                name: await start_node(
                    stack, name, directory, address, TRANSPORTS[transport](), devices=device
                )
                for name, device in (("a", source), ("b", target))
            }
            yield Ends(admission, nodes)
        assert not fake.allocations
