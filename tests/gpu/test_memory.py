"""Memory on the GPU: allocated, exported to another process, pinned, copied, and given back."""

from __future__ import annotations

import multiprocessing
import random
from multiprocessing.connection import Connection

import pytest
import torch

from tests.gpu.conftest import TIMEOUT_S
from worldline.cuda.devices import devices
from worldline.cuda.event import Event
from worldline.cuda.memory import DeviceMemory, ImportedMemory
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.errors import CapacityExhausted, DeadlineExceeded, Unavailable

SIZE_BYTES = (3 << 20) + 17


def test_devices_are_described() -> None:
    for index, device in enumerate(devices()):
        assert device.index == index
        assert device.uuid == f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        assert device.memory_bytes > 1 << 30
        assert device.compute_capability == torch.cuda.get_device_capability(index)
        assert set(device.nvlink_peers) <= set(device.peers)
        assert index not in device.peers


def test_a_tensor_over_it_is_the_memory_itself() -> None:
    with DeviceMemory(SIZE_BYTES, 0) as memory:
        whole, part = memory.whole.tensor(), memory.part(1000, 24).tensor()
        assert whole.data_ptr() == memory.address
        whole.zero_()
        part.fill_(7)
        assert int(whole.sum()) == 7 * 24
        assert whole.device == torch.device(memory.device)
        assert memory.part(5, 0).tensor().numel() == 0
        torch.cuda.synchronize(0)


def test_it_ends_once() -> None:
    memory = DeviceMemory(SIZE_BYTES, 0)
    buffer = memory.part(0, 10)
    memory.close()
    memory.close()
    assert memory.is_closed
    assert buffer.nbytes == 10


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(CapacityExhausted) as caught:
        DeviceMemory(1 << 50, 0)
    assert caught.value.reason == "MEMORY_EXHAUSTED"
    DeviceMemory(1 << 20, 0).close()  # and nothing is broken by it


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(Unavailable) as caught:
        DeviceMemory(1 << 20, 99)
    assert caught.value.reason == "CUDA_DEVICE_UNKNOWN"


def _other_process(pipe: Connection, handle: bytes, size_bytes: int, index: int) -> None:
    stream, pinned = Stream(index), PinnedMemory(size_bytes, index)
    with ImportedMemory(handle, size_bytes, index) as memory:
        stream.copy(pinned.address, memory.address, size_bytes)
        stream.wait(TIMEOUT_S)
        data = bytes(pinned.view)
        pinned.view[:] = data[::-1]
        stream.copy(memory.address, pinned.address, size_bytes)
        stream.wait(TIMEOUT_S)
    pipe.send(data)


@pytest.mark.parametrize("where", ["same device", "peer"])
def test_another_process_maps_the_same_bytes(where: str, request: pytest.FixtureRequest) -> None:
    index = 0 if where == "same device" else request.getfixturevalue("peer_index")
    data = random.Random(1).randbytes(SIZE_BYTES)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with DeviceMemory(SIZE_BYTES, 0) as memory:
        tensor = memory.whole.tensor()
        tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        torch.cuda.synchronize(0)
        handle = memory.export()
        assert len(handle) == 64
        child = context.Process(target=_other_process, args=(there, handle, SIZE_BYTES, index))
        child.start()
        try:
            assert here.poll(TIMEOUT_S)
            assert here.recv() == data
            child.join(TIMEOUT_S)
            assert bytes(tensor.cpu().numpy()) == data[::-1]
        finally:
            child.kill()
            child.join(TIMEOUT_S)
            child.close()


def test_what_was_exported_here_cannot_be_imported_here() -> None:
    with DeviceMemory(SIZE_BYTES, 0) as memory, pytest.raises(Unavailable) as caught:
        ImportedMemory(memory.export(), SIZE_BYTES, 0)
    assert caught.value.reason == "CUDA_IPC_UNAVAILABLE"


def test_bytes_go_out_and_back_through_pinned_memory(stream: Stream) -> None:
    data = random.Random(2).randbytes(SIZE_BYTES)
    out, back = PinnedMemory(SIZE_BYTES), PinnedMemory(SIZE_BYTES)
    out.view[:] = data
    with DeviceMemory(SIZE_BYTES, 0) as memory:
        stream.copy(memory.address, out.address, SIZE_BYTES)
        stream.copy(back.address, memory.address, SIZE_BYTES)
        stream.wait(TIMEOUT_S)
        assert back.view[:SIZE_BYTES] == data
        stream.fill(memory.address + 5, 0xAB, 100)
        stream.copy(out.address, memory.address, SIZE_BYTES)
        stream.wait(TIMEOUT_S)
        assert out.view[:] == data[:5] + b"\xab" * 100 + data[105:]
    out.close()
    back.close()


def test_pinned_memory_lasts_as_long_as_a_view_of_it() -> None:
    pinned = PinnedMemory(1 << 20)
    view = pinned.view[100:200]
    pinned.close()
    view[:] = bytes(range(100))
    assert bytes(view) == bytes(range(100))


def test_copies_between_devices(stream: Stream, peer_index: int) -> None:
    data = random.Random(3).randbytes(SIZE_BYTES)
    with DeviceMemory(SIZE_BYTES, 0) as here, DeviceMemory(SIZE_BYTES, peer_index) as there:
        here.whole.tensor().copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        torch.cuda.synchronize(0)
        stream.copy(there.address, here.address, SIZE_BYTES)
        stream.wait(TIMEOUT_S)
        assert bytes(there.whole.tensor().cpu().numpy()) == data


def test_streams_wait_for_one_another() -> None:
    one, other, pinned = Stream(0), Stream(0), PinnedMemory(4096)
    size_bytes = 1 << 30
    with DeviceMemory(size_bytes, 0) as memory, DeviceMemory(4096, 0) as small:
        for value in range(20):
            one.fill(memory.address, value, size_bytes)
        one.copy(small.address, memory.address + size_bytes - 4096, 4096)
        event = one.record()
        other.wait_for(event)
        other.copy(pinned.address, small.address, 4096)
        assert not event.is_done
        other.wait(TIMEOUT_S)
        assert event.is_done
        assert pinned.view[:] == bytes([19]) * 4096
        pinned.close()
    one.close()
    other.close()


def test_work_of_torch_is_followed_and_preceded(stream: Stream) -> None:
    with DeviceMemory(1 << 28, 0) as memory, DeviceMemory(1 << 28, 0) as copy:
        queue = torch.cuda.Stream(0)
        with torch.cuda.stream(queue):
            tensor = memory.whole.tensor()
            for value in range(50):
                tensor.fill_(value)
            stream.follow(queue.cuda_stream)
            stream.copy(copy.address, memory.address, 1 << 28)
            stream.precede(queue.cuda_stream)
            tensor.fill_(99)
        torch.cuda.synchronize(0)
        assert copy.whole.tensor().unique().tolist() == [49]


def test_a_wait_has_an_end() -> None:
    stream, end = Stream(0), Event(0)
    with DeviceMemory(1 << 30, 0) as memory:
        for _ in range(400):
            stream.fill(memory.address, 1, 1 << 30)
        stream.record(end)
        with pytest.raises(DeadlineExceeded):
            end.wait(0.001)
        stream.wait(TIMEOUT_S)
    end.close()
    stream.close()
