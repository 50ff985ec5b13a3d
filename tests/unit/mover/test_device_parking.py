"""Parking from and to slots of GPUs, over a fake CUDA. The same on real ones: `tests/gpu`."""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from awscrt.checksums import crc64nvme

from services.mover import devicecrossing, parkfile
from services.mover.chunking import Chunk
from services.mover.parking import Parked
from services.mover.parkorder import ParkOrder
from services.mover.pieces import pieces_of
from services.mover.runtime import MoverRuntime
from services.mover.slots import SlotRef, SlotRole
from services.mover.transport.memory import MemoryTransport
from tests.flips import flips, world_layout
from tests.unit.fakecuda import FakeRuntime, HostReadingDigester, bytes_at, fake_cuda
from tests.unit.mover.cluster import MEBIBYTE, layout_of, start_admission, start_node
from worldline.contract import DeterminismTier
from worldline.cuda.buffer import DeviceBuffer
from worldline.errors import DeadlineExceeded, IntegrityError
from worldline.park import ParkKind
from worldline.state import digest
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.state.segments import segments_of

SESSION = "session-1"
WORLD = world_layout()
#: Large pieces and small ones, and many segments in each.
LARGE = layout_of((40 * MEBIBYTE + 77, *[33] * 900, 43 * MEBIBYTE + 5))
KINDS = pytest.mark.parametrize("kind", list(ParkKind), ids=lambda kind: kind.name.lower())


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    with fake_cuda(monkeypatch) as fake:
        yield fake


@dataclass
class Bench:
    """A mover with two slots on a GPU, one of them live with noise in it."""

    runtime: MoverRuntime
    layout: Layout
    slot: SlotRef
    data: bytes

    def view(self, slot: SlotRef) -> memoryview:
        part = self.runtime.slot_memory(slot).part(0, self.layout.extent_bytes)
        assert isinstance(part, DeviceBuffer)
        return bytes_at(part.address, part.nbytes)

    async def park(self, kind: ParkKind = ParkKind.MEMORY) -> Parked:
        manifest = Manifest(
            session_id=SESSION,
            epoch=4,
            block_index=17,
            layout=self.layout,
            fingerprint=Fingerprint.of({"torch": "2"}),
            determinism_tier=DeterminismTier.T0_BITWISE,
        )
        return await self.runtime.parking.park(ParkOrder("park-1", manifest, self.slot, kind))

    @property
    def copy(self) -> memoryview:
        """The parked copy in pinned memory."""
        return self.runtime.parking._buffers["park-1"][0].view

    def check_nothing_kept(self) -> None:
        assert self.runtime.parking.listing() == []
        assert self.runtime.slots.states()[0].role is SlotRole.LIVE


Build = Callable[[Layout], Any]


@pytest.fixture
async def build(cuda: FakeRuntime, tmp_path: Path) -> AsyncIterator[Build]:
    async with AsyncExitStack() as stack:
        _, address = await start_admission(stack)

        async def make(layout: Layout) -> Bench:
            node = await start_node(
                *(stack, "a", tmp_path, address, MemoryTransport()),
                devices="cuda:0",
                slot_bytes=-(-layout.extent_bytes // 4096) * 4096,
                staging_rings=1,
                park_dir=tmp_path / "parked",
                park_threads=3,
            )
            slot = await node.runtime.allocate(SESSION, layout.extent_bytes, "cuda:0")
            made = Bench(
                node.runtime, layout, slot, random.Random(7).randbytes(layout.extent_bytes)
            )
            made.view(slot)[:] = made.data
            return made

        yield make
    gc.collect()  # frames of errors hold views of pinned memory, which lives as long as they do
    assert not cuda.allocations
    assert not cuda.events


@KINDS
@pytest.mark.parametrize("layout", [WORLD, LARGE], ids=["world", "large"])
async def test_out_and_back(build: Build, kind: ParkKind, layout: Layout) -> None:
    bench = await build(layout)
    parked = await bench.park(kind)
    assert parked.digests == digest_slot(layout, memoryview(bench.data))
    assert bench.runtime.release(bench.slot, SESSION)
    bench.view(bench.slot)[:] = bytes(layout.extent_bytes)  # the next tenant
    back = await bench.runtime.parking.unpark("park-1", SESSION, "cuda:0")
    assert bench.view(back.slot) == bench.data
    assert back.manifest.digests == parked.digests
    assert await bench.runtime.parking.drop("park-1", SESSION)


async def test_the_host_reads_every_byte_once_in_one_call_a_piece(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await build(LARGE)
    reads: list[tuple[int, int]] = []

    def counted(part: Any) -> int:
        if len(part):
            start = int(np.frombuffer(part, np.uint8).__array_interface__["data"][0])
            reads.append((start, len(part)))
        return int(crc64nvme(part))

    monkeypatch.setattr(digest, "crc64nvme", counted)
    await bench.park()
    monkeypatch.undo()
    base = devicecrossing.address_of(bench.copy)
    of_copy = sorted((at - base, size) for at, size in reads if 0 <= at - base < len(bench.copy))
    pieces = pieces_of(LARGE.extent_bytes)
    assert of_copy == [(piece.offset_bytes, piece.size_bytes) for piece in pieces]
    assert len(pieces) < segments_of(LARGE, MEBIBYTE).count / 20


async def test_no_bit_is_missed_on_the_way_out(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pinned copy, after the device has copied and before a thread has read."""
    bench = await build(WORLD)
    plain = devicecrossing.part_of
    misses = []
    for flip in flips(WORLD, seed=31):

        def part_of(view: memoryview, chunk: Chunk, flip: Any = flip) -> memoryview:
            part = plain(view, chunk)
            flip.apply(part, chunk.offset_bytes)
            return part

        monkeypatch.setattr(devicecrossing, "part_of", part_of)
        with pytest.raises(IntegrityError, match="the parked copy differs from the slot") as caught:
            await bench.park()
        if (caught.value.leaf, caught.value.granule) != flip.found:
            misses.append(f"{flip} was taken for {caught.value.leaf}, {caught.value.granule}")
        bench.check_nothing_kept()
    assert misses == []
    monkeypatch.setattr(devicecrossing, "part_of", plain)
    await bench.park()


async def test_no_bit_is_missed_in_the_staging_of_a_file(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await build(WORLD)
    plain = parkfile.StateFile.write
    misses = []
    for flip in flips(WORLD, seed=34):

        def write(
            file: parkfile.StateFile, at_bytes: int, view: memoryview, flip: Any = flip
        ) -> None:
            flip.apply(view, at_bytes)
            plain(file, at_bytes, view)

        monkeypatch.setattr(parkfile.StateFile, "write", write)
        with pytest.raises(IntegrityError) as caught:
            await bench.park(ParkKind.FILE)
        if (caught.value.leaf, caught.value.granule) != flip.found:
            misses.append(f"{flip} was taken for {caught.value.leaf}, {caught.value.granule}")
        bench.check_nothing_kept()
    assert misses == []


async def test_no_bit_is_missed_that_changes_in_the_slot_behind_its_digest(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device has digested the slot, and copies other bytes."""
    bench = await build(WORLD)
    slot, plain = bench.view(bench.slot), HostReadingDigester.update
    misses = []
    for flip in flips(WORLD, seed=32):

        def update(*args: Any, flip: Any = flip) -> None:
            plain(*args)
            flip.apply(slot)

        monkeypatch.setattr(HostReadingDigester, "update", update)
        with pytest.raises(IntegrityError) as caught:
            await bench.park()
        if (caught.value.leaf, caught.value.granule) != flip.found:
            misses.append(f"{flip} was taken for {caught.value.leaf}, {caught.value.granule}")
        bench.check_nothing_kept()
        flip.apply(slot)
    assert misses == []


async def test_no_bit_is_missed_at_rest(build: Build) -> None:
    bench = await build(WORLD)
    await bench.park()
    assert bench.runtime.release(bench.slot, SESSION)
    misses = []
    for flip in flips(WORLD, seed=33):
        flip.apply(bench.copy)
        with pytest.raises(IntegrityError) as caught:
            await bench.runtime.parking.unpark("park-1", SESSION, "cuda:0")
        if (caught.value.leaf, caught.value.granule) != flip.found:
            misses.append(f"{flip} was taken for {caught.value.leaf}, {caught.value.granule}")
        flip.apply(bench.copy)
    assert misses == []
    back = await bench.runtime.parking.unpark("park-1", SESSION, "cuda:0")
    assert bench.view(back.slot) == bench.data


@KINDS
async def test_a_state_whose_way_back_was_given_up_lands_in_nobody_elses_slot(
    build: Build, cuda: FakeRuntime, monkeypatch: pytest.MonkeyPatch, kind: ParkKind
) -> None:
    """Fault 4: a device that hangs for longer than anybody waits, and then goes on."""
    bench = await build(WORLD)
    await bench.park(kind)
    assert bench.runtime.release(bench.slot, SESSION)
    monkeypatch.setattr(devicecrossing, "_DEVICE_S", 0.01)
    monkeypatch.setattr("services.mover.memory.cuda._DEVICE_S", 0.01)
    digests = HostReadingDigester.update
    monkeypatch.setattr(HostReadingDigester, "update", lambda *_: None)  # the device's: none comes
    cuda.hangs = True
    with pytest.raises(DeadlineExceeded):
        await bench.runtime.parking.unpark("park-1", SESSION, "cuda:0")
    with pytest.raises(DeadlineExceeded):
        await bench.runtime.allocate("next", WORLD.extent_bytes, "cuda:0")
    assert {state.role for state in bench.runtime.slots.states()} == {SlotRole.FREE}
    cuda.hangs = False
    tenant = await bench.runtime.allocate("next", WORLD.extent_bytes, "cuda:0")
    for stream in list(cuda.streams):
        cuda.cudaStreamQuery(stream)
    assert not any(bench.view(tenant))
    monkeypatch.setattr(HostReadingDigester, "update", digests)
    back = await bench.runtime.parking.unpark("park-1", SESSION, "cuda:0")
    assert bytes(bench.view(back.slot)) == bench.data
    assert not any(bench.view(tenant))
