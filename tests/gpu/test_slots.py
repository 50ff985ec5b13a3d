"""Slots on GPUs, with real processes: two movers, all kinds of memory at the ends."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from services.engine.cudaslot import CudaSlot
from services.engine.device import EngineDevice, describe_device
from services.engine.slotmap import SlotMap
from services.mover.staged import STAGED_LANE
from tests.mover_pair import MoverNode, mover_pair, occupied
from tests.oracles import bounded, until
from tests.unit.mover.cluster import Cluster, layout_of
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.cuda.devices import devices
from worldline.errors import InvariantBroken, Unavailable
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.v1 import move_pb2

SESSION = "session-1"
SLOT_BYTES = 160 << 20
#: Odd sizes over 137 MiB: several staged chunks, borders of granules within leaves.
LEAVES = (96 * (1 << 20) + 5, 40 * (1 << 20) + 123, 1_300_001)
#: What a driver may take for tables of its own; a slot is forty times as large.
SLACK_BYTES = 4 << 20
needs_two = pytest.mark.skipif(
    len(devices()) < 2, reason=f"needs two GPUs, there are {len(devices())}"
)


@dataclass
class Ends:
    """Two mover processes, and what a test does with their slots."""

    movers: Cluster

    def node(self, name: str) -> MoverNode:
        node: Any = self.movers.nodes[name]
        assert isinstance(node, MoverNode)
        return node

    async def map(self, name: str, slot: move_pb2.SlotRef) -> SlotMap:
        return await self.node(name).slots.map(slot, SESSION)

    async def filled(self, layout: Layout, data: bytes) -> move_pb2.SlotRef:
        """A LIVE slot at `a` that holds these bytes."""
        slot = await self.node("a").slots.allocate(SESSION, layout.extent_bytes)
        memory = await self.map("a", slot)
        host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        memory.buffer()[: len(data)].copy_(host)
        memory.settle()
        memory.close()
        return slot

    async def bytes_of(self, name: str, slot: move_pb2.SlotRef, size_bytes: int) -> bytes:
        memory = await self.map(name, slot)
        found = bytes(memory.buffer()[:size_bytes].cpu().numpy().tobytes())
        memory.close()
        return found

    async def move(
        self, layout: Layout, slot: move_pb2.SlotRef, expected: int, data: bytes
    ) -> tuple[str, ...]:
        """Reserve, push, verify, compare byte by byte, release; the lanes that were used."""
        movers = self.movers
        manifest, ticket = movers.manifest(layout), movers.ticket(layout)
        reserved = await movers.reserve(ticket, layout)
        outcome, _ = await movers.push(
            ticket,
            manifest,
            reserved.reservation_id,
            slot,
            chunk_bytes=0,
            window_chunks=0,
            verification="VERIFICATION_UNSPECIFIED",
        )
        assert outcome.digests.whole == outcome.receipt.digests.whole == expected
        answer = await movers.verify(reserved.reservation_id, manifest, outcome.digests)
        assert answer.equal
        await movers.promote(reserved.reservation_id, reserved.slot)
        assert await self.bytes_of("b", reserved.slot, len(data)) == data
        assert await movers.release("b", reserved.slot)
        stats = outcome.push_stats
        sys.stdout.write(
            f"{stats.wire_bytes} bytes, {stats.total_ms:.2f} ms, lanes {list(stats.lanes)}\n"
        )
        return tuple(stats.lanes)


@asynccontextmanager
async def ends(directory: Path, source: str, target: str) -> AsyncIterator[Ends]:
    """Movers `a` and `b` on these devices; in the end nothing may be occupied."""
    places: dict[str, EngineDevice] = {
        "a": describe_device(source),
        "b": describe_device(target),
    }
    async with bounded(120), mover_pair(directory, SLOT_BYTES, places) as movers:
        yield Ends(movers)
        await until(lambda: occupied(movers))


async def check_moves(directory: Path, source: str, target: str, count: int) -> tuple[str, ...]:
    """The same digests at both ends as on the CPU, several times; no memory is lost to moves."""
    layout = layout_of(LEAVES)
    data = random.Random(11).randbytes(layout.extent_bytes)
    expected = digest_slot(layout, memoryview(data), threads=2).whole
    async with ends(directory, source, target) as pair:
        slot = await pair.filled(layout, data)
        lanes = await pair.move(layout, slot, expected, data)
        before = free_on_all()
        for _ in range(count - 1):
            assert await pair.move(layout, slot, expected, data) == lanes
        for free_bytes, after in zip(before, free_on_all(), strict=True):
            assert after > free_bytes - SLACK_BYTES
        assert await pair.movers.release("a", slot)
    return lanes


def free_on_all() -> list[int]:
    """Free bytes of every GPU, whoever has the rest."""
    return [torch.cuda.mem_get_info(each.index)[0] for each in devices()]


@needs_two
async def test_between_gpus_nothing_is_staged(tmp_path: Path) -> None:
    lanes = await check_moves(tmp_path, "cuda:0", "cuda:1", 6)
    assert any(lane.startswith("cuda_ipc/") for lane in lanes)
    assert STAGED_LANE not in lanes


async def test_from_a_gpu_to_host_memory(tmp_path: Path) -> None:
    assert STAGED_LANE in await check_moves(tmp_path, "cuda:0", "cpu", 3)


async def test_from_host_memory_to_a_gpu(tmp_path: Path) -> None:
    await check_moves(tmp_path, "cpu", "cuda:0", 3)


@needs_two
async def test_over_lanes_that_carry_host_memory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between hosts without RDMA: pinned memory at both ends."""
    monkeypatch.setenv("UCX_TLS", "tcp,cuda_copy")
    lanes = await check_moves(tmp_path, "cuda:0", "cuda:1", 3)
    assert STAGED_LANE in lanes
    assert any(lane.startswith("tcp/") for lane in lanes)


async def test_a_fresh_slot_is_zeros_and_a_mapped_one_the_movers(tmp_path: Path) -> None:
    layout = layout_of(LEAVES)
    data = random.Random(3).randbytes(layout.extent_bytes)
    async with ends(tmp_path, "cuda:0", "cpu") as pair:
        slot = await pair.filled(layout, data)
        memory = await pair.map("a", slot)
        assert isinstance(memory, CudaSlot)
        assert memory.buffer().device == torch.device("cuda:0")
        assert memory.digest(layout) == digest_slot(layout, memoryview(data))
        view = memory.buffer()[100:200].view(torch.int16)[3:]
        with pytest.raises(InvariantBroken):
            memory.close()
        view.fill_(-1)
        torch.cuda.synchronize()
        del view
        memory.close()
        memory.close()
        changed = await pair.bytes_of("a", slot, 200)
        assert changed[106:] == b"\xff" * 94
        assert await pair.movers.release("a", slot)
        again = await pair.node("a").slots.allocate(SESSION, layout.extent_bytes)
        assert again.slot_index == slot.slot_index
        assert not any(await pair.bytes_of("a", again, layout.extent_bytes))
        assert await pair.movers.release("a", again)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"devices": "cuda:0", "slot_bytes": str(1 << 40)}, ("MEMORY_EXHAUSTED", "cuda:0")),
        ({"devices": "cuda:99"}, ("CUDA_DEVICE_UNKNOWN", "(devices)", "cuda:0")),
    ],
)
async def test_a_mover_that_cannot_start_says_why(
    tmp_path: Path, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    own = {"listen": "127.0.0.1:0", "runtime_dir": str(tmp_path), "slot_count": "1"}
    spec = ServiceSpec("mover", "mover", "services.mover.main:main", {**own, **variables})
    process = await ServiceProcess.start(spec, tmp_path / "mover.log")
    try:
        with pytest.raises(Unavailable) as caught:
            await process.ready(60.0)
    finally:
        await process.stop(5.0)
        process.close()
    for word in words:
        assert word in caught.value.message
