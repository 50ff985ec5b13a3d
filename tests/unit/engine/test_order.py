"""Order (invariant I9, fault 3): what a model queues is done before its state is read or leaves."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator, Iterator

import pytest
import torch

from services.engine.hostslot import HostSlot
from services.engine.quantum import advance
from services.engine.slotstate import SlotState
from services.engine.world import NO_FRAMES, Frames
from worldline.contract import DecodeTier
from worldline.state.digest import digest_slot
from worldline.state.tree import plan

SIZE_BYTES = 1 << 16


class QueueingSlot(HostSlot):
    """A slot on a device that does nothing of what is queued before somebody waits."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        super().__init__(descriptor, size_bytes)
        self.queued: list[Callable[[], object]] = []

    def settle(self) -> None:
        while self.queued:
            self.queued.pop(0)()


@pytest.fixture
def slot() -> Iterator[QueueingSlot]:
    descriptor = os.memfd_create("wl-test-order")
    os.ftruncate(descriptor, SIZE_BYTES)
    slot = QueueingSlot(descriptor, SIZE_BYTES)
    os.close(descriptor)
    yield slot
    slot.queued.clear()
    slot.close()


def test_a_digest_sees_what_the_last_quantum_queued_on_a_side_stream(slot: QueueingSlot) -> None:
    layout = plan({"leaf": torch.zeros(SIZE_BYTES, dtype=torch.uint8)})
    memory = SlotState(slot, layout)
    data = random.Random(1).randbytes(SIZE_BYTES)

    def block() -> Generator[None, None, Frames]:
        leaf = memory.state["leaf"]
        for half in (slice(0, SIZE_BYTES // 2), slice(SIZE_BYTES // 2, SIZE_BYTES)):
            value = torch.frombuffer(bytearray(data[half]), dtype=torch.uint8)
            slot.queued.append(lambda half=half, value=value: leaf[half].copy_(value))  # type: ignore[misc]
            if half.start == 0:
                yield
        return NO_FRAMES

    run = block()
    first = advance(run, memory, DecodeTier.NONE, True)
    assert first.frames is None
    assert not slot.queued  # a quantum ends when the device is done with it
    last = advance(run, memory, DecodeTier.NONE, True)
    assert last.error is None
    assert not slot.queued
    assert last.state_digest == digest_slot(layout, memoryview(data)).whole
    del run
    memory.close()
