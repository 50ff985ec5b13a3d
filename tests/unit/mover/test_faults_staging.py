"""The battery on slots of GPUs, over a fake CUDA: no bit is missed through pinned memory.

Digests are of what rests on the devices, so whatever happens between the two is seen. The same on
real GPUs: `tests/gpu/test_battery.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.mover.transport.memory import MemoryTransport
from tests.device_tampering import SIDES, STAGED_PLACES, Change, DeviceTamper
from tests.flips import flips, world_layout
from tests.unit.fakecuda import FakeRuntime, bytes_at, fake_cuda
from tests.unit.mover.cluster import MEBIBYTE, Cluster, start_admission, start_node
from worldline.cuda.buffer import DeviceBuffer
from worldline.errors import IntegrityError
from worldline.rpc.channel import call
from worldline.v1 import move_pb2, mover_pb2

LAYOUT = world_layout()
RINGS = 2


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    with fake_cuda(monkeypatch) as fake:
        yield fake


@dataclass
class Devices:
    """A live slot on `a`'s GPU, moved to `b`'s through a ring of pinned buffers at each end."""

    cluster: Cluster
    slot: move_pb2.SlotRef
    data: bytes

    def memory(self, side: str, slot: move_pb2.SlotRef) -> DeviceBuffer:
        found = self.cluster.nodes[side].runtime.slot_memory(slot).part(0, LAYOUT.extent_bytes)  # type: ignore[arg-type]
        assert isinstance(found, DeviceBuffer)
        return found

    def view(self, side: str, slot: move_pb2.SlotRef) -> memoryview:
        return bytes_at(self.memory(side, slot).address, LAYOUT.extent_bytes)

    async def reserve(self) -> tuple[Any, mover_pb2.ReserveResponse]:
        ticket = self.cluster.ticket(LAYOUT)
        return ticket, await self.cluster.reserve(ticket, LAYOUT)

    async def push(self, ticket: Any, reserved: mover_pb2.ReserveResponse) -> mover_pb2.PushOutcome:
        manifest, name = self.cluster.manifest(LAYOUT), reserved.reservation_id
        outcome, _ = await self.cluster.push(ticket, manifest, name, self.slot)
        return outcome

    async def check_quiet(self) -> None:
        for node in self.cluster.nodes.values():
            await node.until_quiet()
            census = node.runtime.census()
            assert census["endpoints"] == census["requests_outstanding"] == 0
            assert census["staging_rings_free"] == RINGS
            assert all(state.pins == 0 for state in node.runtime.slots.states())


@pytest.fixture
async def pair(cuda: FakeRuntime, tmp_path: Path) -> AsyncIterator[Devices]:
    async with AsyncExitStack() as stack:
        admission, address = await start_admission(stack)
        nodes = {
            name: await start_node(
                *(stack, name, tmp_path, address, MemoryTransport()),
                devices=device,
                staging_rings=1,
                slot_bytes=16 * MEBIBYTE,
            )
            for name, device in (("a", "cuda:0"), ("b", "cuda:1"))
        }
        cluster = Cluster(admission, nodes)
        request = mover_pb2.AllocateRequest(
            session_id="session-1", extent_bytes=LAYOUT.extent_bytes
        )
        slot = (await call(nodes["a"].stub.Allocate, request, timeout_s=60)).slot
        made = Devices(cluster, slot, np.random.default_rng(5).bytes(LAYOUT.extent_bytes))
        made.view("a", slot)[:] = made.data
        yield made
        await made.check_quiet()
    assert not cuda.allocations


@pytest.mark.parametrize("place", STAGED_PLACES)
async def test_no_bit_is_missed(pair: Devices, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    armed: list[Change] = []
    DeviceTamper(lambda: armed[0] if armed else None, armed.clear).install(monkeypatch)
    source, data = pair.view("a", pair.slot), memoryview(pair.data)
    misses = []
    for flip in flips(LAYOUT, seed=STAGED_PLACES.index(place)):
        ticket, reserved = await pair.reserve()
        slot = pair.slot if SIDES[place] == "a" else reserved.slot
        address = pair.memory(SIDES[place], slot).address + flip.offset_bytes
        armed.append(Change(place, address, flip.bit))
        try:
            await pair.push(ticket, reserved)
        except IntegrityError as error:
            if (error.leaf, error.granule) != flip.found:
                misses.append(f"{flip} was taken for {error.leaf}, {error.granule}")
        else:
            misses.append(f"{flip} was missed")
            await pair.cluster.release("b", reserved.slot)
        assert not armed
        await pair.cluster.nodes["b"].until_free(reserved.slot)
        if not np.array_equal(source, data):
            flip.apply(source)
            assert np.array_equal(source, data)
    assert misses == []
    ticket, reserved = await pair.reserve()
    await pair.push(ticket, reserved)
    assert np.array_equal(pair.view("b", reserved.slot), data)
    await pair.cluster.release("b", reserved.slot)


async def test_no_bit_is_missed_in_the_slot(pair: Devices) -> None:
    cluster, manifest = pair.cluster, pair.cluster.manifest(LAYOUT)
    ticket, reserved = await pair.reserve()
    outcome = await pair.push(ticket, reserved)
    view = pair.view("b", reserved.slot)
    misses = []
    for flip in flips(LAYOUT, seed=9):
        flip.apply(view)
        answer = await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
        found = answer.failure.leaf or None, answer.failure.granule
        if answer.equal or found != flip.found:
            misses.append(f"{flip} was taken for {found}")
        flip.apply(view)
    assert misses == []
    assert (await cluster.verify(reserved.reservation_id, manifest, outcome.digests)).equal
    await cluster.release("b", reserved.slot)
