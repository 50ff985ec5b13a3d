"""Zeros in every kind of memory that can be had anywhere; on a real device: tests/gpu."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from services.mover.blanks import find_blanks
from services.mover.memory.base import SlotMemory
from services.mover.memory.cuda import CudaMemory
from services.mover.memory.host import HostMemory
from tests.unit.fakecuda import FakeRuntime, bytes_at, fake_cuda
from tests.unit.mover.blank_memory import SLOT_BYTES, BlankMemorySuite
from worldline.errors import Unavailable


class TestHostMemory(BlankMemorySuite):
    @pytest.fixture
    def memory(self) -> Iterator[HostMemory]:
        memory = HostMemory("test", SLOT_BYTES)
        yield memory
        memory.close()

    def bytes_of(self, memory: SlotMemory, size_bytes: int) -> bytes:
        part = memory.part(0, size_bytes)
        assert isinstance(part, memoryview)
        return bytes(part)


class TestDeviceMemoryOverAFakeCuda(BlankMemorySuite):
    @pytest.fixture
    def memory(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaMemory]:
        with fake_cuda(monkeypatch):
            memory = CudaMemory("cuda:0", SLOT_BYTES)
            yield memory
            memory.close()

    def bytes_of(self, memory: SlotMemory, size_bytes: int) -> bytes:
        assert isinstance(memory, CudaMemory)
        return bytes(bytes_at(memory.part(0, size_bytes).address, size_bytes))


def test_a_device_that_cannot_look_has_slots_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch):

        def no_compiler(index: int) -> None:
            raise Unavailable("no compiler", reason="COMPILER_UNAVAILABLE")

        monkeypatch.setattr("services.mover.memory.cuda.zero_finder", no_compiler)
        with capture_logs() as logs:
            memory = CudaMemory("cuda:1", SLOT_BYTES)
        assert [(each["event"], each["device"]) for each in logs] == [("slots.no_look", "cuda:1")]
        with pytest.raises(Unavailable):
            find_blanks(memory, SLOT_BYTES)
        memory.prepare(SLOT_BYTES, zero=True)
        memory.close()


def test_a_write_that_may_still_come_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a wait for the device that ran out: the slot's next tenant must not meet it."""
    with fake_cuda(monkeypatch) as fake:
        memory = CudaMemory("cuda:0", SLOT_BYTES)
        assert memory.has_pages(SLOT_BYTES)
        query = FakeRuntime.cudaStreamQuery
        late = True

        def slow(self: FakeRuntime, stream: int) -> object:
            return (600,) if late else query(self, stream)

        monkeypatch.setattr(FakeRuntime, "cudaStreamQuery", slow)
        memory._stream.fill(memory.whole.address, 0, 100)
        assert not memory.has_pages(SLOT_BYTES)
        late = False
        memory.write(0, memoryview(b"\xff" * 100))
        memory.prepare(SLOT_BYTES, zero=False)
        assert bytes(bytes_at(memory.whole.address, 100)) == b"\xff" * 100
        assert not any(fake.streams.values())
        memory.close()
