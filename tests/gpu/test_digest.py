"""Digest on the GPU: a full-size state, run by run, without waiting and without allocating."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.gpu.conftest import TIMEOUT_S
from tests.unit.state.test_mg2 import state
from worldline.cuda.availability import unavailable_reason
from worldline.cuda.digest import CudaDigester
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.runtime import call
from worldline.errors import InvalidInput, InvariantBroken
from worldline.state.difference import compare_segments
from worldline.state.digest import GRANULE_BYTES, digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.tree import plan

RUN_GRANULES = 128


@dataclass
class Slot:
    layout: Layout
    memory: DeviceMemory
    digests: Digests

    def runs(self) -> list[tuple[int, int]]:
        count = -(-self.layout.extent_bytes // GRANULE_BYTES)
        return [
            (first, min(RUN_GRANULES, count - first)) for first in range(0, count, RUN_GRANULES)
        ]

    def update(self, digester: CudaDigester, first: int, count: int) -> None:
        start_bytes = first * GRANULE_BYTES
        size_bytes = min(count * GRANULE_BYTES, self.layout.extent_bytes - start_bytes)
        digester.update(first, count, self.memory.part(start_bytes, size_bytes))


@pytest.fixture(scope="module")
def slot() -> Iterator[Slot]:
    """Random bytes in the layout of a full-size state, and their digests by the CPU."""
    if unavailable_reason() is not None:
        pytest.skip(str(unavailable_reason()))
    layout = plan(state())
    data = np.random.default_rng(7).bytes(layout.extent_bytes)
    with DeviceMemory(layout.extent_bytes, 0) as memory:
        memory.whole.tensor().copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        torch.cuda.synchronize(0)
        yield Slot(layout, memory, digest_slot(layout, memoryview(data), threads=8))


def test_a_full_size_state_in_one_run(slot: Slot) -> None:
    digester = CudaDigester(slot.layout, 0)
    digester.update(0, digester.granule_count, slot.memory.whole)
    assert digester.digests() == slot.digests
    digester.close()


def test_a_full_size_state_run_by_run_in_any_order(slot: Slot) -> None:
    digester = CudaDigester(slot.layout, 0)
    for first, count in reversed(slot.runs()):
        slot.update(digester, first, count)
    slot.update(digester, *slot.runs()[0])  # again: it counts once
    assert digester.digests() == slot.digests
    digester.close()


def test_a_flipped_bit_is_found_in_its_granule_and_leaf(slot: Slot) -> None:
    digester = CudaDigester(slot.layout, 0)
    digester.update(0, digester.granule_count, slot.memory.whole)
    good = digester.segment_crcs()
    tensor = slot.memory.whole.tensor()
    for leaf in slot.layout.tensors[::37]:
        at = leaf.offset_bytes + leaf.span_bytes // 2
        tensor[at] ^= 16
        torch.cuda.synchronize(0)
        digester.update(0, digester.granule_count, slot.memory.whole)
        found = compare_segments(slot.layout, GRANULE_BYTES, good, digester.segment_crcs())
        tensor[at] ^= 16
        torch.cuda.synchronize(0)
        assert found is not None
        assert (found.leaf, found.granule) == (leaf.path, at // GRANULE_BYTES)
    digester.close()


def test_queueing_costs_microseconds_and_does_not_wait(slot: Slot) -> None:
    digester = CudaDigester(slot.layout, 0)
    elapsed_us = []
    for _ in range(30):
        for first, count in slot.runs():
            start_s = time.perf_counter()
            slot.update(digester, first, count)
            elapsed_us.append((time.perf_counter() - start_s) * 1e6)
        digester.segment_crcs()
    digester.close()
    assert statistics.median(elapsed_us) < 50


def test_others_run_while_it_waits(slot: Slot) -> None:
    digester = CudaDigester(slot.layout, 0)
    turns, ended = [0], threading.Event()

    def count() -> None:
        while not ended.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    for _ in range(40):
        digester.update(0, digester.granule_count, slot.memory.whole)
    thread.start()
    before = turns[0]
    digester.segment_crcs(TIMEOUT_S)
    counted = turns[0] - before
    ended.set()
    thread.join()
    digester.close()
    assert counted > 1000


def test_digesters_come_and_go_without_allocating(slot: Slot) -> None:
    CudaDigester(slot.layout, 0).close()
    torch.cuda.synchronize(0)
    before = torch.cuda.mem_get_info(0)
    for _ in range(200):
        digester = CudaDigester(slot.layout, 0)
        digester.update(0, digester.granule_count, slot.memory.whole)
        assert digester.segment_crcs().size
        digester.close()
    assert torch.cuda.mem_get_info(0) == before


def test_what_is_no_run_is_refused(slot: Slot) -> None:
    digester = CudaDigester(slot.layout, 0)
    for first, count, size_bytes in ((0, 1, 1), (-1, 1, GRANULE_BYTES), (0, 2, GRANULE_BYTES)):
        with pytest.raises(InvalidInput):
            digester.update(first, count, slot.memory.part(0, size_bytes))
    slot.update(digester, 0, 5)
    with pytest.raises(InvariantBroken) as caught:
        digester.segment_crcs()
    assert caught.value.granule == 5
    digester.close()


def test_the_device_of_the_thread_is_left_as_it_was(slot: Slot, peer_index: int) -> None:
    with torch.cuda.device(peer_index):
        digester = CudaDigester(slot.layout, 0)
        digester.update(0, digester.granule_count, slot.memory.whole)
        assert digester.digests() == slot.digests
        digester.close()
        assert torch.cuda.current_device() == peer_index
        assert call("cudaGetDevice") == peer_index
