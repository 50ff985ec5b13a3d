"""Staging: when it is due, how little it holds, and that nothing of it is lost on the way."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from services.mover.staged import STAGED_LANE, StagedEndpoint
from services.mover.staging import (
    PULLED_CHUNK_BYTES,
    STAGED_CHUNK_BYTES,
    Staging,
    gpudirect,
    largest_chunk,
    needs_staging,
)
from services.mover.stock import Stock
from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucxendpoint import IN_PLACE
from tests.conformance.staged import HostCopier, HostPinned, host_staging
from tests.unit.mover.cluster import until
from worldline.errors import DeadlineExceeded, TransferFailed

CHUNK = 1000
NVLINK, TCP, RDMA = ("cuda_ipc/cuda", "posix/memory"), ("tcp/eth0",), ("rc_mlx5/mlx5_0:1",)


@pytest.mark.parametrize(
    ("own", "peer", "lanes", "rdma", "due"),
    [
        ("cuda:0", "cuda:1", NVLINK, False, False),
        ("cuda:0", "cuda:1", TCP, False, True),
        ("cuda:0", "cuda:1", ("cma/memory", "posix/memory"), True, True),
        ("cuda:0", "cuda:1", RDMA, False, True),
        ("cuda:0", "cuda:1", RDMA, True, False),
        # CUDA IPC joins two GPUs; a host's memory is no end of it.
        ("cuda:0", "cpu", NVLINK, False, True),
        ("cuda:0", "cpu", RDMA, True, False),
        ("cpu", "cuda:0", TCP, False, False),
        ("cpu", "cpu", TCP, False, False),
    ],
)
def test_when_it_is_due(own: str, peer: str, lanes: tuple[str, ...], rdma: bool, due: bool) -> None:
    assert needs_staging(own, peer, lanes, rdma_reaches_gpus=rdma) is due


def test_chunks_are_small_enough_for_the_other_end_too() -> None:
    """The end in host memory stages nothing, and still keeps to what its peer can stage."""
    assert largest_chunk("cpu", "cuda:0", TCP) == STAGED_CHUNK_BYTES
    assert largest_chunk("cuda:0", "cpu", TCP) == STAGED_CHUNK_BYTES
    assert largest_chunk("cpu", "cpu", TCP) is None
    for pulling in (IN_PLACE, "cma/memory"):
        assert largest_chunk("cpu", "cpu", (pulling, "posix/memory")) == PULLED_CHUNK_BYTES
    assert largest_chunk("cuda:0", "cuda:1", ("cma/memory", *NVLINK)) is None
    assert largest_chunk("cuda:0", "cuda:1", NVLINK) is None


def test_gpudirect_is_what_ucx_looks_for(tmp_path: Path) -> None:
    module = tmp_path / "version"
    assert not gpudirect({}, (module,))
    module.write_text("1")
    assert gpudirect({}, (tmp_path / "other", module))
    assert not gpudirect({"UCX_IB_GPU_DIRECT_RDMA": "n"}, (module,))


async def test_stock_serves_in_order_and_loses_nothing_to_cancellation() -> None:
    stock = Stock([1])
    assert await stock.take() == 1
    assert stock.take_now() is None
    first, second, third = (asyncio.ensure_future(stock.take()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    stock.give(1)  # to the second: the first has gone
    second.cancel()  # and it goes with the item in its hand
    await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()
    assert second.cancelled()
    assert await asyncio.wait_for(third, 60) == 1
    stock.give(1)
    assert len(stock) == 1


class Wire(Endpoint):
    """An endpoint whose requests end when the test says so."""

    def __init__(self) -> None:
        self.posted: list[tuple[Request, memoryview]] = []
        self.open = True

    @property
    def alive(self) -> bool:
        return self.open

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        return self._post("send", buffer, tag)

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        return self._post("receive", buffer, tag)

    def _post(self, kind: str, buffer: Buffer, tag: int) -> Request:
        assert isinstance(buffer, memoryview)
        request = Request(kind, tag, buffer.nbytes)
        self.posted.append((request, buffer))
        return request

    def lanes(self) -> tuple[str, ...]:
        return TCP

    async def close(self) -> None:
        self.open = False

    async def abort(self) -> None:
        self.open = False
        for request, _ in self.posted:
            request.end(TransferFailed("aborted", reason="CANCELLED"))


@pytest.fixture
def staging():
    staging = host_staging(rings=1, buffer_bytes=CHUNK, buffers_per_ring=2)
    staging.start()
    yield staging
    assert (len(staging.leaving), len(staging.arriving)) == (1, 1)
    staging.close()


def copied(staging: Staging) -> int:
    assert isinstance(staging.copier, HostCopier)
    return staging.copier.copied_bytes // CHUNK


async def test_one_chunk_is_copied_while_the_one_before_is_on_the_wire(staging: Staging) -> None:
    wire = Wire()
    endpoint = StagedEndpoint(wire, staging)
    chunks = [bytes([index]) * CHUNK for index in range(5)]
    sends = [endpoint.send(memoryview(chunk), tag) for tag, chunk in enumerate(chunks)]
    await until(lambda: len(wire.posted) == 2)
    await asyncio.sleep(0.02)
    assert copied(staging) == len(wire.posted) == 2  # and no third buffer
    for index in range(5):
        await until(lambda index=index: len(wire.posted) > index)  # type: ignore[misc]
        request, part = wire.posted[index]
        assert (request.tag, part) == (index, chunks[index])
        request.end(None)
    for send in sends:
        await asyncio.wait_for(send.wait(), 60)
    assert endpoint.is_clean
    assert await staging.unwrap(endpoint) is wire


async def test_a_receive_is_done_when_the_bytes_are_on_the_device(staging: Staging) -> None:
    wire = Wire()
    endpoint = StagedEndpoint(wire, staging)
    landed = bytearray(CHUNK)
    receive = endpoint.receive(memoryview(landed), 7)
    await until(lambda: bool(wire.posted))
    request, part = wire.posted[0]
    part[:] = b"\x05" * CHUNK
    request.end(None)
    assert not receive.terminal
    await asyncio.wait_for(receive.wait(), 60)
    assert landed == b"\x05" * CHUNK
    assert STAGED_LANE in endpoint.lanes()
    await endpoint.close()


async def test_a_failed_receive_leaves_the_device_alone(staging: Staging) -> None:
    wire = Wire()
    endpoint = StagedEndpoint(wire, staging)
    landed = bytearray(CHUNK)
    receive = endpoint.receive(memoryview(landed), 7)
    await until(lambda: bool(wire.posted))
    request, part = wire.posted[0]
    part[:] = b"\x05" * CHUNK
    request.end(TransferFailed("the peer is gone"))
    with pytest.raises(TransferFailed):
        await asyncio.wait_for(receive.wait(), 60)
    assert landed == bytes(CHUNK)
    assert not endpoint.alive
    assert await staging.unwrap(endpoint) is None


async def test_transfers_beyond_the_rings(staging: Staging) -> None:
    """One that leaves waits for its turn, one that arrives is refused."""
    first, second = StagedEndpoint(Wire(), staging), StagedEndpoint(Wire(), staging)
    for endpoint in (first, second):
        for tag in (1, 2):
            endpoint.send(memoryview(bytes(CHUNK)), tag)
    first.receive(memoryview(bytearray(CHUNK)), 3)
    refused = second.receive(memoryview(bytearray(CHUNK)), 3)
    with pytest.raises(TransferFailed) as caught:
        await asyncio.wait_for(refused.wait(), 60)
    assert caught.value.reason == "STAGING_BUSY"
    wire = second.inner
    assert isinstance(wire, Wire)
    await until(lambda: copied(staging) == 2)
    await asyncio.sleep(0.02)
    assert not wire.posted
    await asyncio.wait_for(first.abort(), 60)
    await until(lambda: len(wire.posted) == 2)
    await asyncio.wait_for(second.abort(), 60)


async def test_an_abort_ends_those_that_wait(staging: Staging) -> None:
    first, second = StagedEndpoint(Wire(), staging), StagedEndpoint(Wire(), staging)
    held = first.send(memoryview(bytes(CHUNK)), 1)
    await until(lambda: copied(staging) == 1)
    waiting = [second.send(memoryview(bytes(CHUNK)), tag) for tag in range(4)]
    await asyncio.sleep(0.01)
    unstarted = second.send(memoryview(bytes(CHUNK)), 9)
    await asyncio.wait_for(second.abort(), 60)
    for request in (*waiting, unstarted):
        assert request.error is not None
        assert request.error.reason == "CANCELLED"
    assert not held.terminal
    await asyncio.wait_for(first.abort(), 60)


async def test_a_chunk_beyond_the_buffers_is_refused(staging: Staging) -> None:
    endpoint = StagedEndpoint(Wire(), staging)
    with pytest.raises(TransferFailed) as caught:
        await endpoint.send(memoryview(bytes(CHUNK + 1)), 1).wait()
    assert caught.value.reason == "CHUNK_EXCEEDS_STAGING"
    await endpoint.abort()


async def test_a_device_that_fails_to_copy_is_a_failed_transfer(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DeadlineExceeded("a stream did not finish within 10 s")

    monkeypatch.setattr(staging.copier, "to_host", fail)
    endpoint = StagedEndpoint(Wire(), staging)
    with pytest.raises(TransferFailed) as caught:
        await asyncio.wait_for(endpoint.send(memoryview(bytes(CHUNK)), 1).wait(), 60)
    assert caught.value.reason == "STAGING_FAILED"
    assert "did not finish" in caught.value.message
    await endpoint.abort()


async def test_host_memory_takes_no_detour(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging.copier, "rests_on_device", lambda _: False)
    wire = Wire()
    endpoint = StagedEndpoint(wire, staging)
    data = memoryview(bytes(5 * CHUNK))
    endpoint.send(data, 1)
    endpoint.receive(data, 2)
    assert [part for _, part in wire.posted] == [data, data]
    assert wire.posted[0][1] is data
    await endpoint.abort()


async def test_a_state_through_two_small_rings_and_nothing_grows() -> None:
    """Many chunks through two buffers at each end, staged at one end or at both."""
    staging = host_staging(rings=1, buffer_bytes=CHUNK, buffers_per_ring=2)
    staging.start()
    source, target = MemoryTransport(), MemoryTransport()
    await source.start()
    await target.start()
    before = staging.census()
    try:
        for round_number, at_both in enumerate((True, False, True)):
            data = random.Random(round_number).randbytes(40 * CHUNK - 123)
            landed = bytearray(len(data))
            sender = StagedEndpoint(await source.connect(target.address), staging)
            inner = await target.connect(source.address)
            receiver = StagedEndpoint(inner, staging) if at_both else inner
            requests = []
            for tag, start in enumerate(range(0, len(data), CHUNK)):
                part = slice(start, min(start + CHUNK, len(data)))
                requests.append(receiver.receive(memoryview(landed)[part], tag))
                requests.append(sender.send(memoryview(data)[part], tag))
            async with asyncio.timeout(60):
                for request in requests:
                    await request.wait()
            assert landed == data
            assert await staging.unwrap(sender) is not None
            assert await staging.unwrap(receiver) is not None
            assert staging.census() == before
    finally:
        await source.stop()
        await target.stop()
        staging.close()


def test_the_buffers_are_taken_once_and_given_back() -> None:
    made: list[HostPinned] = []

    def pin(size_bytes: int) -> HostPinned:
        made.append(HostPinned(size_bytes))
        return made[-1]

    staging = Staging(HostCopier(), pin, rings=2)
    staging.start()
    assert len(made) == len(staging.views) == 2 * 2 * 2
    assert staging.census()["staging_bytes"] == 8 * STAGED_CHUNK_BYTES
    staging.close()
    for one in made:
        with pytest.raises(ValueError, match="released"):
            len(one.view)
