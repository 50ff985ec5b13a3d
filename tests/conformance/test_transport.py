"""What services.mover.transport.base promises, held against every transport."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from services.mover.transport.base import Endpoint, Request, Transport
from worldline.errors import TransferFailed

Peers = tuple[Transport, Transport]
TAG = 7 << 40
MEBIBYTE = 1 << 20


async def joined(peers: Peers) -> tuple[Endpoint, Endpoint]:
    source, target = peers
    return await source.connect(target.address), await target.connect(source.address)


def noise(size: int, seed: int = 0) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


async def settled(*requests: Request, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        for request in requests:
            await request.settled()


@pytest.mark.parametrize("size", [0, 1, 7, 4095, 8257, 65_537, MEBIBYTE, 5 * MEBIBYTE + 13])
async def test_bytes_arrive_exactly(peers: Peers, size: int) -> None:
    sender, receiver = await joined(peers)
    data, landed = noise(size), bytearray(size + 2)
    receive = receiver.receive(memoryview(landed)[1 : size + 1], TAG)
    send = sender.send(memoryview(data), TAG)
    await send.wait()
    await receive.wait()
    assert landed == b"\0" + data + b"\0"
    assert send.terminal
    assert receive.terminal


async def test_many_chunks_in_a_window(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    chunk, count = 256 * 1024 + 3, 100
    data, landed = noise(chunk * count), bytearray(chunk * count)
    sends, receives = [], []
    for index in range(count):
        part = slice(index * chunk, (index + 1) * chunk)
        receives.append(receiver.receive(memoryview(landed)[part], TAG + index))
        sends.append(sender.send(memoryview(data)[part], TAG + index))
    for request in (*sends, *receives):
        await request.wait()
    assert landed == data


async def test_tags_may_come_in_any_order(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    order = list(range(20))
    random.Random(1).shuffle(order)
    messages = [noise(2000 + 60_000 * (index % 3), index) for index in order]
    sends = [
        sender.send(memoryview(message), TAG + index)
        for index, message in zip(order, messages, strict=True)
    ]
    landed = {index: bytearray(len(m)) for index, m in zip(order, messages, strict=True)}
    receives = [receiver.receive(memoryview(landed[i]), TAG + i) for i in sorted(order)]
    for request in (*sends, *receives):
        await request.wait()
    assert [landed[index] for index in order] == messages


@pytest.mark.parametrize("size", [1000, 4 * MEBIBYTE])
async def test_longer_message_raises_at_the_receiver(peers: Peers, size: int) -> None:
    sender, receiver = await joined(peers)
    guarded = bytearray(size)
    receive = receiver.receive(memoryview(guarded)[: size // 2], TAG)
    send = sender.send(memoryview(noise(size)), TAG)
    with pytest.raises(TransferFailed) as caught:
        await receive.wait()
    assert caught.value.reason == "TRUNCATED"
    assert guarded[size // 2 :] == bytes(size - size // 2)
    await sender.abort()
    await receiver.abort()
    assert send.terminal


async def test_aborted_send_raises_and_is_terminal(peers: Peers) -> None:
    """Fault 5: ucxx's own `send` returns from this as if it had been done."""
    sender, receiver = await joined(peers)
    send = sender.send(memoryview(noise(8 * MEBIBYTE)), TAG)  # nobody receives it
    waiter = asyncio.ensure_future(send.wait())
    await asyncio.sleep(0)
    assert not send.terminal
    await asyncio.wait_for(sender.abort(), 60)
    assert send.terminal
    with pytest.raises(TransferFailed) as caught:
        await waiter
    assert caught.value.reason == "CANCELLED"
    assert not sender.alive
    await receiver.abort()


async def test_aborted_receive_raises_and_is_never_written_again(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    landed = bytearray(4 * MEBIBYTE)
    receive = receiver.receive(memoryview(landed), TAG)
    await asyncio.wait_for(receiver.abort(), 60)
    assert receive.terminal
    with pytest.raises(TransferFailed):
        await receive.wait()
    send = sender.send(memoryview(noise(len(landed))), TAG)
    other = (await joined(peers))[1].receive(memoryview(bytearray(10)), TAG + 1)
    sent = (await peers[0].connect(peers[1].address)).send(memoryview(noise(10)), TAG + 1)
    await settled(other, sent)  # traffic went through: a late write would have come by now
    assert landed == bytes(len(landed))
    await sender.abort()
    assert send.terminal


async def test_abort_in_mid_transfer_ends_every_request(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    chunk, count = 4 * MEBIBYTE, 16
    data, landed = noise(chunk), [bytearray(chunk) for _ in range(count)]
    receives = [receiver.receive(memoryview(part), TAG + i) for i, part in enumerate(landed)]
    sends = [sender.send(memoryview(data), TAG + i) for i in range(count // 2)]
    await receives[0].wait()
    await asyncio.wait_for(receiver.abort(), 60)
    assert all(request.terminal for request in receives)
    before = [bytes(part) for part in landed]
    await asyncio.wait_for(sender.abort(), 60)
    assert all(request.terminal for request in sends)
    assert [bytes(part) for part in landed] == before
    assert any(request.error is not None for request in receives)


async def test_a_cancelled_wait_is_not_a_cancelled_request(peers: Peers) -> None:
    """Fault 5: a timeout in asyncio is not a cancel in the transport."""
    sender, receiver = await joined(peers)
    landed = bytearray(MEBIBYTE)
    receive = receiver.receive(memoryview(landed), TAG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await receive.wait()
    assert not receive.terminal
    data = noise(MEBIBYTE)
    await sender.send(memoryview(data), TAG).wait()
    await receive.wait()
    assert landed == data


async def test_a_cancelled_connect_leaves_no_endpoint(peers: Peers) -> None:
    source, target = peers
    for turns in range(6):
        connecting = asyncio.ensure_future(source.connect(target.address))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        done, _ = await asyncio.wait({connecting}, timeout=60)
        if not connecting.cancelled():
            await done.pop().result().abort()
    assert source.census()["endpoints"] == 0
    sender, receiver = await joined(peers)  # and it still works
    receive = receiver.receive(memoryview(bytearray(3)), TAG)
    await sender.send(memoryview(b"abc"), TAG).wait()
    await receive.wait()


async def test_posting_on_a_closed_endpoint_fails_at_once(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    await sender.abort()
    await receiver.close()
    for request in (
        sender.send(memoryview(b"x"), TAG),
        receiver.receive(memoryview(bytearray(1)), TAG),
    ):
        with pytest.raises(TransferFailed):
            await asyncio.wait_for(request.wait(), 60)
    await sender.abort()  # idempotent
    await receiver.close()


@pytest.mark.parametrize("size", [100, 50_000, 3 * MEBIBYTE])
async def test_close_right_after_the_last_send_loses_nothing(peers: Peers, size: int) -> None:
    """Fault 15."""
    sender, receiver = await joined(peers)
    data = noise(size)
    count = 300 if size < MEBIBYTE else 10
    landed = [bytearray(size) for _ in range(count)]
    receives = [receiver.receive(memoryview(part), TAG + i) for i, part in enumerate(landed)]
    for index in range(count):
        sender.send(memoryview(data), TAG + index)
    await asyncio.wait_for(sender.close(), 60)
    await settled(*receives)
    assert all(part == data for part in landed)
    assert not sender.alive
    await receiver.close()


async def test_connect_close_in_a_tight_loop(peers: Peers) -> None:
    """Fault 15."""
    data = noise(100_000)
    for index in range(30):
        sender, receiver = await joined(peers)
        landed = bytearray(len(data))
        receive = receiver.receive(memoryview(landed), TAG + index)
        sender.send(memoryview(data), TAG + index)
        await asyncio.wait_for(receive.wait(), 60)
        assert landed == data
        await asyncio.wait_for(sender.close(), 60)
        await asyncio.wait_for(receiver.close(), 60)
    assert peers[0].census()["endpoints"] == 0


async def test_concurrent_transfers_do_not_mix(peers: Peers) -> None:
    async def one(number: int) -> None:
        sender, receiver = await joined(peers)
        base = (number + 1) << 40
        data = noise(12 * 100_000, number)
        landed = bytearray(len(data))
        requests = []
        for index in range(12):
            part = slice(index * 100_000, (index + 1) * 100_000)
            requests.append(receiver.receive(memoryview(landed)[part], base + index))
            requests.append(sender.send(memoryview(data)[part], base + index))
        for request in requests:
            await request.wait()
        assert landed == data
        await peers[0].park(sender)
        await peers[1].park(receiver)

    await asyncio.gather(*(one(number) for number in range(4)))


async def test_aborting_one_transfer_leaves_the_other_alone(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    other_sender, other_receiver = await joined(peers)
    doomed = receiver.receive(memoryview(bytearray(MEBIBYTE)), TAG)
    data, landed = noise(8 * MEBIBYTE), bytearray(8 * MEBIBYTE)
    receive = other_receiver.receive(memoryview(landed), TAG + 1)
    await receiver.abort()
    await sender.abort()
    await other_sender.send(memoryview(data), TAG + 1).wait()
    await receive.wait()
    assert landed == data
    assert doomed.error is not None


async def test_parked_endpoints_are_used_again(peers: Peers) -> None:
    sender, _ = await joined(peers)
    await peers[0].park(sender)
    assert peers[0].census()["endpoints_parked"] == 1
    assert await peers[0].connect(peers[1].address) is sender
    assert peers[0].census()["endpoints_parked"] == 0


async def test_an_endpoint_with_a_failed_request_is_not_parked(peers: Peers) -> None:
    sender, receiver = await joined(peers)
    sender.send(memoryview(noise(4 * MEBIBYTE)), TAG)
    await peers[0].park(sender)
    assert peers[0].census()["endpoints_parked"] == 0
    assert peers[0].census()["requests_outstanding"] == 0
    await receiver.abort()


async def test_lanes_are_named(peers: Peers) -> None:
    sender, _ = await joined(peers)
    assert sender.lanes()
    assert all("/" in lane for lane in sender.lanes())


async def test_registered_memory_moves_and_unregisters(peers: Peers) -> None:
    data, landed = noise(MEBIBYTE), bytearray(MEBIBYTE)
    for transport, buffer in zip(peers, (data, landed), strict=True):
        await transport.register(memoryview(buffer))
        assert transport.census()["registrations"] == 1
    sender, receiver = await joined(peers)
    receive = receiver.receive(memoryview(landed), TAG)
    await sender.send(memoryview(data), TAG).wait()
    await receive.wait()
    assert landed == data
    for transport, buffer in zip(peers, (data, landed), strict=True):
        await transport.unregister(memoryview(buffer))
        assert transport.census()["registrations"] == 0


async def test_a_bad_address_is_refused(peers: Peers) -> None:
    with pytest.raises(TransferFailed) as caught:
        await peers[0].connect(b"")
    assert caught.value.field == "worker_address"


async def test_stop_ends_what_is_outstanding(factory: Callable[[], Transport]) -> None:
    one, other = factory(), factory()
    await one.start()
    await other.start()
    endpoint = await one.connect(other.address)
    receive = endpoint.receive(memoryview(bytearray(100)), TAG)
    await asyncio.wait_for(one.stop(), 60)
    assert receive.terminal
    assert receive.error is not None
    await other.stop()
