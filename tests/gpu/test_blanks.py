"""Zeros on the GPU: found by a kernel, written by the device, and left behind by moves.

One GPU is enough for all of it: two movers have their slots on the same one.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.mover.memory.base import SlotMemory
from services.mover.memory.cuda import CudaMemory
from services.mover.staged import STAGED_LANE
from tests.gpu.conftest import TIMEOUT_S, Upload
from tests.gpu.test_slots import SESSION, Ends, ends
from tests.unit.mover.blank_memory import SLOT_BYTES, UNSEEN_BY_DIGESTS, BlankMemorySuite
from tests.unit.mover.cluster import layout_of
from worldline.cuda import zeros
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.cuda.zeros import UNIT_BYTES, zero_finder
from worldline.errors import TransferFailed
from worldline.rpc.push import PushCall
from worldline.state.digest import digest_slot
from worldline.v1 import move_pb2, mover_pb2

MEBIBYTE = 1 << 20
#: Written, zeros over several chunks, written; borders fall within granules.
SIZES = (20 * MEBIBYTE + 5, 60 * MEBIBYTE + 123, 20 * MEBIBYTE)
LAYOUT = layout_of(SIZES)
CHUNK_BYTES = 4 * MEBIBYTE
#: Chunks that lie in the second leaf alone.
BEHIND = range(6, 20)


class TestDeviceMemory(BlankMemorySuite):
    """What every kind of slot memory has to say, said by a device."""

    @pytest.fixture
    def memory(self) -> Iterator[CudaMemory]:
        memory = CudaMemory("cuda:0", SLOT_BYTES)
        yield memory
        memory.close()

    def bytes_of(self, memory: SlotMemory, size_bytes: int) -> bytes:
        assert isinstance(memory, CudaMemory)
        stream, pinned = Stream(0), PinnedMemory(size_bytes)
        stream.copy(pinned.address, memory.part(0, size_bytes).address, size_bytes)
        stream.wait(TIMEOUT_S)
        data = bytes(pinned.view)
        pinned.close()
        stream.close()
        return data


sizes = st.one_of(
    st.integers(1, 300),
    st.integers(1, 3_000_000),
    st.sampled_from([15, 16, 17, UNIT_BYTES - 1, UNIT_BYTES, UNIT_BYTES + 1, 1 << 20]),
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_length_at_any_address(upload: Upload, draw: st.DataObject) -> None:
    """What lies around the run is no zeros, and a bit in it may be anywhere."""
    size_bytes, offset_bytes = draw.draw(sizes), draw.draw(st.integers(0, 40))
    granule_bytes = draw.draw(st.sampled_from([1 << 10, 70_000, UNIT_BYTES, 1 << 20]))
    places = st.one_of(st.integers(0, size_bytes - 1), st.sampled_from([0, size_bytes - 1]))
    data = bytearray(size_bytes)
    for at in draw.draw(st.lists(places, max_size=4)):
        data[at] = 1 << draw.draw(st.integers(0, 7))
    count = -(-size_bytes // granule_bytes)
    asked = np.array(draw.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    blank = np.array(
        [not any(data[at : at + granule_bytes]) for at in range(0, size_bytes, granule_bytes)]
    )
    around = b"\xff" * offset_bytes
    with upload(around + data + b"\xff" * 40) as memory:
        run, finder = memory.part(offset_bytes, size_bytes), zero_finder(0)
        assert finder.find(run, granule_bytes=granule_bytes).tolist() == blank.tolist()
        found = finder.find(run, asked, granule_bytes=granule_bytes)
        assert found.tolist() == (blank & asked).tolist()


def test_a_look_through_a_state_of_full_size_allocates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a look allocates")

    extent_bytes = 1_670_124_960
    with DeviceMemory(extent_bytes, 0) as memory:
        whole, finder = memory.whole.tensor(), zero_finder(0)
        whole.fill_(1)
        whole[400 * MEBIBYTE : 700 * MEBIBYTE].zero_()
        torch.cuda.synchronize(0)
        finder.reserve(extent_bytes)
        monkeypatch.setattr(zeros, "_desk", refuse)
        elapsed_ms = []
        for _ in range(100):
            start_s = time.perf_counter()
            found = finder.find(memory.whole)
            elapsed_ms.append((time.perf_counter() - start_s) * 1e3)
            assert np.flatnonzero(found).tolist() == list(range(400, 700))
    median_ms, slowest_ms = np.median(elapsed_ms), max(elapsed_ms)
    sys.stdout.write(f"a look: {median_ms:.3f} ms, the slowest {slowest_ms:.3f} ms\n")


async def used(pair: Ends, slot: move_pb2.SlotRef) -> None:
    """Another state has been in the slot before."""
    memory = await pair.map("b", slot)
    memory.buffer().fill_(0xA5)
    memory.settle()
    memory.close()


def state() -> bytearray:
    data = bytearray(random.Random(11).randbytes(LAYOUT.extent_bytes))
    data[SIZES[0] : SIZES[0] + SIZES[1]] = bytes(SIZES[1])
    return data


async def moved(
    pair: Ends, data: bytearray, verification: str, late: Mapping[int, bytes] | None = None
) -> move_pb2.PushStats:
    """Move a state with a leaf of zeros; `late` is written, by offset, once the source looked."""
    movers, layout = pair.movers, LAYOUT
    slot = await pair.filled(layout, bytes(data))
    ticket, manifest = movers.ticket(layout), movers.manifest(layout)
    reserved = await movers.reserve(ticket, layout)
    await used(pair, reserved.slot)
    order = movers.order(
        ticket,
        manifest,
        reserved.reservation_id,
        slot,
        verification=f"VERIFICATION_{verification}",
        chunk_bytes=CHUNK_BYTES,
        window_chunks=4,
    )
    push = PushCall(movers.nodes["a"].stub, order, 100)
    try:
        await push.arm()
        if late:
            memory = await pair.map("a", slot)
            for at, written in late.items():
                data[at : at + len(written)] = written
                host = torch.frombuffer(bytearray(written), dtype=torch.uint8)
                memory.buffer()[at : at + len(written)].copy_(host)
            memory.settle()
            memory.close()
        await push.go(manifest.block_index, manifest.layout)
        outcome: mover_pb2.PushOutcome = await push.outcome()
    except TransferFailed:
        assert await movers.release("a", slot, SESSION)
        raise
    finally:
        await push.close()
    expected = digest_slot(layout, memoryview(data), threads=2).whole
    assert outcome.digests.whole == outcome.receipt.digests.whole == expected
    assert outcome.receipt.received_bytes == layout.extent_bytes
    assert (await movers.verify(reserved.reservation_id, manifest, outcome.digests)).equal
    await movers.promote(reserved.reservation_id, reserved.slot)
    assert await pair.bytes_of("b", reserved.slot, len(data)) == data
    for name, each in (("b", reserved.slot), ("a", slot)):
        assert await movers.release(name, each, SESSION)
    return outcome.push_stats


WAYS = [("cuda:0", "cuda:0"), ("cuda:0", "cpu"), ("cpu", "cuda:0")]


@pytest.mark.parametrize(("source", "target"), WAYS, ids="-".join)
async def test_zeros_stay_behind_and_arrive(tmp_path: Path, source: str, target: str) -> None:
    """Whatever memory is at the ends, with what was written after the look too."""
    behind_bytes = len(BEHIND) * CHUNK_BYTES
    async with ends(tmp_path, source, target) as pair:
        for verification in ("PIPELINED", "SEQUENTIAL"):
            stats = await moved(pair, state(), verification)
            assert stats.blank_bytes == behind_bytes
            assert stats.wire_bytes == LAYOUT.extent_bytes - behind_bytes
            late = {chunk * CHUNK_BYTES + 9: b"\x01" for chunk in (BEHIND[0], BEHIND[-1])}
            stats = await moved(pair, state(), verification, late)
            assert stats.blank_bytes == behind_bytes - 2 * CHUNK_BYTES
        stats = await moved(pair, state(), "TAIL")
        assert stats.blank_bytes == behind_bytes


async def test_zeros_stay_behind_of_what_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between hosts without RDMA: pinned memory at both ends."""
    monkeypatch.setenv("UCX_TLS", "tcp,cuda_copy")
    async with ends(tmp_path, "cuda:0", "cuda:0") as pair:
        late = {BEHIND[3] * CHUNK_BYTES: b"\x80"}
        for written in ({}, late):
            stats = await moved(pair, state(), "PIPELINED", written)
            assert stats.blank_bytes == (len(BEHIND) - len(written)) * CHUNK_BYTES
            assert STAGED_LANE in stats.lanes


@pytest.mark.parametrize(("source", "target"), WAYS, ids="-".join)
async def test_bytes_with_the_digest_of_zeros_are_never_taken_for_them(
    tmp_path: Path, source: str, target: str
) -> None:
    """Written after the look, no digest tells: the source does. The next look sees them."""
    at = BEHIND[2] * CHUNK_BYTES + MEBIBYTE + 1_000
    async with ends(tmp_path, source, target) as pair:
        for verification in ("PIPELINED", "SEQUENTIAL"):
            data = state()
            with pytest.raises(TransferFailed) as caught:
                await moved(pair, data, verification, {at: UNSEEN_BY_DIGESTS})
            assert caught.value.reason == "ZEROS_UNPROVEN"
            stats = await moved(pair, data, verification)
            assert stats.blank_bytes == (len(BEHIND) - 1) * CHUNK_BYTES


async def test_a_slot_of_zeros_moves_without_a_byte(tmp_path: Path) -> None:
    async with ends(tmp_path, "cuda:0", "cuda:0") as pair:
        stats = await moved(pair, bytearray(LAYOUT.extent_bytes), "PIPELINED")
        assert (stats.wire_bytes, stats.blank_bytes) == (0, LAYOUT.extent_bytes)
