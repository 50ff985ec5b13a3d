"""Zeros: the kernel's source itself on the host, and looks over a fake CUDA."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cuda.host import run
from tests.unit.fakecuda import FakeRuntime, fake_cuda
from worldline.cuda import zeros
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.zeros import UNIT_BYTES, ZeroFinder
from worldline.errors import CapacityExhausted, DeadlineExceeded, InvalidInput, InvariantBroken


@pytest.mark.parametrize("seed", range(24))
def test_the_kernel_reads_every_byte_and_no_other(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    granule_bytes = source.choice([100, 4_096, UNIT_BYTES, UNIT_BYTES + 40, 3 * UNIT_BYTES])
    size_bytes = source.choice([1, 15, 16, 17, 1_000, UNIT_BYTES + 1, 300_000, 400_003])
    count = -(-size_bytes // granule_bytes)
    data, skipped = bytearray(size_bytes), np.array(source.choices([0, 1], [3, 1], k=count))
    for _ in range(source.choice([0, 1, 1, 4])):
        at = source.choice([0, size_bytes - 1, source.randrange(size_bytes)])
        data[at] = 1 << source.randrange(8)
    (tmp_path / "run").write_bytes(data)
    (tmp_path / "written").write_bytes(skipped.astype(np.uint8).tobytes())
    run("zeros", tmp_path, granule_bytes, source.choice([0, 0, 1, 7, 15, 16, 33]))
    found = np.frombuffer((tmp_path / "written.out").read_bytes(), np.uint8)
    parts = [data[at : at + granule_bytes] for at in range(0, size_bytes, granule_bytes)]
    assert found.tolist() == [
        int(any(part) or skip) for part, skip in zip(parts, skipped, strict=True)
    ]


class Blind:
    """`Kernel` without a GPU: finds nothing but zeros."""

    def __init__(self, name: str, device_index: int) -> None:
        assert name == "zeros"

    def launch(self, stream: object, blocks: int, threads: int, arguments: object) -> None:
        assert blocks >= 1
        assert threads >= 16  # the bytes beside whole words are read by one thread each


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    with fake_cuda(monkeypatch) as fake:
        monkeypatch.setattr(zeros, "Kernel", Blind)
        yield fake
        gc.collect()  # what is left of a test has to go to the fake it came from


def test_looks_use_what_was_reserved_and_give_it_back(cuda: FakeRuntime) -> None:
    finder = ZeroFinder(0)
    finder.reserve(100 << 20)
    memory = DeviceMemory(5 << 20, 0)
    before = set(cuda.allocations), set(cuda.streams)
    for _ in range(10):
        among = np.array([True, False, True, True, False])
        assert finder.find(memory.whole, among).tolist() == among.tolist()
        assert finder.find(memory.whole).all()
    finder.begin(memory.whole)  # nobody asks for it
    gc.collect()
    assert finder.find(memory.part(0, 0)).size == 0
    assert (set(cuda.allocations), set(cuda.streams)) == before
    memory.close()


def test_a_look_that_has_not_ended_keeps_its_place(
    cuda: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeros, "_DESKS_MAX", 2)
    finder, memory = ZeroFinder(0), DeviceMemory(5 << 20, 0)
    answer = FakeRuntime.cudaStreamQuery
    busy = True

    def query(self: FakeRuntime, stream: int) -> object:
        return (600,) if busy else answer(self, stream)

    monkeypatch.setattr(FakeRuntime, "cudaStreamQuery", query)
    monkeypatch.setattr(FakeRuntime, "cudaEventQuery", lambda *_: (600,))
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            finder.find(memory.whole, timeout_s=0.0)
    gc.collect()
    with pytest.raises(CapacityExhausted) as caught:
        finder.begin(memory.whole)
    assert caught.value.reason == "LOOKS_BUSY"
    busy = False
    look = finder.begin(memory.whole)
    assert look.is_done
    assert look.found().all()
    look.close()
    look.close()
    with pytest.raises(InvariantBroken):
        look.found()
    memory.close()


def test_what_is_no_look_is_refused(cuda: FakeRuntime) -> None:
    finder, memory = ZeroFinder(0), DeviceMemory(5 << 20, 0)
    with pytest.raises(InvalidInput) as caught:
        finder.begin(memory.whole, np.ones(4, np.bool_))
    assert caught.value.field == "among"
    with pytest.raises(InvalidInput) as caught:
        finder.begin(memory.whole, granule_bytes=0)
    assert caught.value.field == "granule_bytes"
    memory.close()
