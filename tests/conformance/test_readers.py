"""Readers see every byte of a request once, in order, and fail it when they raise."""

from __future__ import annotations

import asyncio
import random

import pytest

from services.mover.transport.base import Endpoint, Reader, Transport
from tests.conformance.test_transport import Peers, joined, noise
from worldline.errors import TransferFailed

TAG = 9 << 40
MEBIBYTE = 1 << 20


class Seen:
    """What a reader was shown, and whether it was there by then."""

    def __init__(self, view: memoryview) -> None:
        self.pieces: list[tuple[int, int]] = []
        self.content = bytearray()
        self._view = view

    def __call__(self, offset_bytes: int, size_bytes: int) -> None:
        self.pieces.append((offset_bytes, size_bytes))
        self.content += self._view[offset_bytes : offset_bytes + size_bytes]


async def moved(
    ends: tuple[Endpoint, Endpoint],
    data: memoryview,
    landed: memoryview,
    readers: tuple[Reader, Reader],
) -> None:
    sender, receiver = ends
    receive = receiver.receive(landed, TAG, readers[1])
    send = sender.send(data, TAG, readers[0])
    async with asyncio.timeout(60):
        await send.settled()
        await receive.wait()
        await send.wait()


@pytest.mark.parametrize("size", [1, 70_000, MEBIBYTE, 9 * MEBIBYTE + 5])
async def test_readers_see_every_byte_in_order(peers: Peers, size: int) -> None:
    if await _stages(peers[0]):
        pytest.skip("a staged endpoint has no readers: device memory is digested on the device")
    data, landed = memoryview(noise(size)), memoryview(bytearray(size))
    sent, received = Seen(data), Seen(landed)
    await moved(await joined(peers), data, landed, (sent, received))
    for seen in (sent, received):
        assert seen.content == data
        ends = [offset + length for offset, length in seen.pieces]
        assert [offset for offset, _ in seen.pieces] == [0, *ends[:-1]]


@pytest.mark.parametrize("side", [0, 1])
async def test_a_reader_that_raises_fails_its_request(peers: Peers, side: int) -> None:
    if await _stages(peers[0]):
        pytest.skip("a staged endpoint has no readers: device memory is digested on the device")
    size = 3 * MEBIBYTE
    data, landed = memoryview(noise(size)), memoryview(bytearray(size))

    def broken(offset_bytes: int, size_bytes: int) -> None:
        raise RuntimeError("cannot read")

    readers: list[Reader] = [Seen(data), Seen(landed)]
    readers[side] = broken
    sender, receiver = await joined(peers)
    receive = receiver.receive(landed, TAG, readers[1])
    send = sender.send(data, TAG, readers[0])
    failing = (send, receive)[side]
    async with asyncio.timeout(60):
        with pytest.raises(TransferFailed, match="cannot read"):
            await failing.wait()
        await sender.abort()
        await receiver.abort()
    assert send.terminal
    assert receive.terminal


async def _stages(transport: Transport) -> bool:
    endpoint = await transport.connect(transport.address)
    try:
        return any(lane.startswith("staged/") for lane in endpoint.lanes())
    finally:
        await endpoint.abort()


def test_noise_is_noise() -> None:
    """A suite that compares equal buffers of zeros would prove nothing."""
    assert noise(64) == bytearray(random.Random(0).randbytes(64))
    assert len(set(noise(4096))) > 200
