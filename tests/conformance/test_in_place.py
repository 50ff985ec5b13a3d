"""Between neighbours the receiver reads the sender's memory in place, or has it sent.

The suite of `test_transport` runs over buffers that nobody may map; here they are slots.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import numpy
import pytest

from services.mover.memory.host import HostMemory
from services.mover.memory.pages import HugePages
from services.mover.transport import neighbours, threadplane
from services.mover.transport.lanes import Lane
from services.mover.transport.peeraddress import MemoryFile
from services.mover.transport.ucx import UcxTransport
from services.mover.transport.ucxendpoint import IN_PLACE, UcxEndpoint
from tests.conformance.test_readers import Seen
from tests.conformance.test_transport import noise
from tests.unit.mover.cluster import until
from worldline.errors import TransferFailed

TAG = 11 << 40
MEBIBYTE = 1 << 20
SLOT_BYTES = 24 * MEBIBYTE


class End:
    """A transport with one registered slot."""

    def __init__(self, transport: UcxTransport, slot: HostMemory) -> None:
        self.transport = transport
        self.slot = slot


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    async with AsyncExitStack() as stack:
        made = []
        for name in ("source", "target"):
            transport = UcxTransport({"KEEPALIVE_INTERVAL": "1000s"})  # nothing else wakes it
            await transport.start()
            stack.push_async_callback(transport.stop)
            slot = HostMemory(name, SLOT_BYTES)
            stack.callback(slot.close)
            slot.prepare(SLOT_BYTES, zero=False)
            await transport.register(slot.whole, slot.descriptor)
            made.append(End(transport, slot))
        async with asyncio.timeout(60):
            yield made[0], made[1]


async def joined(source: End, target: End) -> tuple[UcxEndpoint, UcxEndpoint]:
    sender = await source.transport.connect(target.transport.address)
    receiver = await target.transport.connect(source.transport.address)
    assert isinstance(sender, UcxEndpoint)
    assert isinstance(receiver, UcxEndpoint)
    return sender, receiver


async def test_slots_are_read_in_place(ends: tuple[End, End], monkeypatch) -> None:
    source, target = ends
    sent_by_ucx: list[int] = []
    post = UcxEndpoint.place_of
    monkeypatch.setattr(
        UcxEndpoint,
        "place_of",
        lambda self, buffer: post(self, buffer) or sent_by_ucx.append(buffer.nbytes),
    )
    source.slot.whole[:] = noise(SLOT_BYTES)
    sender, receiver = await joined(*ends)
    assert IN_PLACE in sender.lanes()
    assert IN_PLACE in receiver.lanes()
    sizes = [1, 4095, 5 * MEBIBYTE + 13, 9 * MEBIBYTE]
    starts = [7, 4096, 2 * MEBIBYTE + 1, 8 * MEBIBYTE + 3]
    places = list(enumerate(zip(starts, sizes, strict=True)))
    seen = [Seen(target.slot.part(start, size)) for _, (start, size) in places]
    shown = [Seen(source.slot.part(start, size)) for _, (start, size) in places]
    receives = [
        receiver.receive(target.slot.part(start, size), TAG + index, seen[index])
        for index, (start, size) in places
    ]
    for index, (start, size) in places:
        await sender.send(source.slot.part(start, size), TAG + index, shown[index]).wait()
    for receive in receives:
        await receive.wait()
    assert sent_by_ucx == []
    assert IN_PLACE in sender.lanes()
    assert IN_PLACE in receiver.lanes()
    for index, (start, size) in places:
        assert seen[index].content == source.slot.part(start, size)
        assert shown[index].content == source.slot.part(start, size)
    expected = bytearray(SLOT_BYTES)
    for start, size in zip(starts, sizes, strict=True):
        expected[start : start + size] = source.slot.part(start, size)
    assert target.slot.whole == expected


async def test_other_memory_travels_beside_slots(ends: tuple[End, End]) -> None:
    """A probe's scratch, a parked state: memory that nobody announced goes through UCX."""
    source, target = ends
    sender, receiver = await joined(*ends)
    data = noise(3 * MEBIBYTE)
    receives = [
        receiver.receive(target.slot.part(0, len(data)), TAG),
        receiver.receive(memoryview(landed := bytearray(len(data))), TAG + 1),
    ]
    await sender.send(memoryview(data), TAG).wait()
    source.slot.part(0, len(data))[:] = data
    await sender.send(source.slot.part(0, len(data)), TAG + 1).wait()
    for receive in receives:
        await receive.wait()
    assert target.slot.part(0, len(data)) == data
    assert landed == data


async def test_whoever_waits_for_a_mapping_is_woken(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data plane sleeps meanwhile, and nothing that UCX knows of would wake it."""
    monkeypatch.setattr(threadplane, "SLEEP_MS", 60_000)
    opened, opens = threading.Event(), neighbours._open

    def late(pid: int, file: MemoryFile) -> neighbours.Mapping | None:
        assert opened.wait(60)
        return opens(pid, file)

    monkeypatch.setattr(neighbours, "_open", late)
    source, target = ends
    source.slot.part(0, MEBIBYTE)[:] = data = noise(MEBIBYTE)
    sender, receiver = await joined(*ends)
    receive = receiver.receive(target.slot.part(0, MEBIBYTE), TAG)
    send = sender.send(source.slot.part(0, MEBIBYTE), TAG)
    plane = target.transport._plane
    assert plane is not None
    await until(lambda: plane._sleeping)
    opened.set()
    async with asyncio.timeout(60):
        await receive.wait()
        await send.wait()
    assert target.slot.part(0, MEBIBYTE) == data


async def test_a_peer_that_does_not_copy_holds_up_nobody_else(ends: tuple[End, End]) -> None:
    """A sender's digest keeps beside its peer, so it must not wait for one peer with another's."""
    source, target = ends
    source.slot.part(0, MEBIBYTE)[:] = data = noise(MEBIBYTE)
    stuck = UcxTransport()
    await stuck.start()
    try:
        to_stuck = await source.transport.connect(stuck.address)
        waiting = to_stuck.send(source.slot.part(0, MEBIBYTE), TAG, Seen(source.slot.whole))
        sender, receiver = await joined(*ends)
        receive = receiver.receive(target.slot.part(0, MEBIBYTE), TAG + 1)
        async with asyncio.timeout(60):
            sent = sender.send(source.slot.part(0, MEBIBYTE), TAG + 1, Seen(source.slot.whole))
            await sent.wait()
            await receive.wait()
        assert target.slot.part(0, MEBIBYTE) == data
        assert not waiting.terminal
        await to_stuck.abort()
    finally:
        await stuck.stop()


@pytest.mark.parametrize("why", ["gone", "may shrink", "another file"])
async def test_a_file_that_cannot_be_mapped_is_sent(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    source, target = ends
    source.slot.part(0, MEBIBYTE)[:] = data = noise(MEBIBYTE)
    sender, receiver = await joined(*ends)
    opened: list[int] = []
    really_open, really_ask = os.open, fcntl.fcntl

    def spoilt_open(path: str, flags: int) -> int:
        opened.append(1)
        if why == "gone":
            raise FileNotFoundError(path)
        if why == "another file":
            other = os.memfd_create("another", os.MFD_ALLOW_SEALING)
            os.ftruncate(other, SLOT_BYTES)
            really_ask(other, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            return other
        return really_open(path, flags)

    def spoilt_ask(descriptor: int, command: int, *rest: int) -> int:
        return 0 if why == "may shrink" else really_ask(descriptor, command, *rest)

    monkeypatch.setattr(neighbours.os, "open", spoilt_open)
    monkeypatch.setattr(neighbours.fcntl, "fcntl", spoilt_ask)
    receive = receiver.receive(target.slot.part(0, MEBIBYTE), TAG)
    await sender.send(source.slot.part(0, MEBIBYTE), TAG).wait()
    await receive.wait()
    assert opened
    assert target.slot.part(0, MEBIBYTE) == data
    for endpoint in (sender, receiver):
        assert endpoint.lanes() == ("posix/memory",), "what did not carry it is not said to have"


async def test_a_longer_message_raises_and_writes_nothing(ends: tuple[End, End]) -> None:
    source, target = ends
    source.slot.whole[:] = noise(SLOT_BYTES)
    sender, receiver = await joined(*ends)
    receive = receiver.receive(target.slot.part(0, MEBIBYTE), TAG)
    send = sender.send(source.slot.part(0, 2 * MEBIBYTE), TAG)
    with pytest.raises(TransferFailed) as caught:
        await receive.wait()
    assert caught.value.reason == "TRUNCATED"
    await send.settled()
    assert not any(target.slot.whole)


async def test_no_byte_is_written_after_an_abort(ends: tuple[End, End]) -> None:
    """Fault 4: a copy under way ends before `abort` returns."""
    source, target = ends
    source.slot.whole[:] = noise(SLOT_BYTES)
    for turns in range(0, 40, 4):
        sender, receiver = await joined(*ends)
        receives = [
            receiver.receive(target.slot.part(i * MEBIBYTE, MEBIBYTE), TAG + i) for i in range(24)
        ]
        sends = [sender.send(source.slot.part(i * MEBIBYTE, MEBIBYTE), TAG + i) for i in range(24)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(receiver.abort(), 60)
        assert all(receive.terminal for receive in receives)
        before = bytes(target.slot.whole)
        await asyncio.wait_for(sender.abort(), 60)
        assert all(send.terminal for send in sends)
        await asyncio.sleep(0.01)
        assert target.slot.whole == before
        target.slot.whole[:] = bytes(SLOT_BYTES)


async def test_a_neighbours_memory_is_let_go_with_its_last_endpoint(
    ends: tuple[End, End],
) -> None:
    source, target = ends
    first = await joined(*ends)
    second = await joined(*ends)
    receive = first[1].receive(target.slot.part(0, 10), TAG)
    await first[0].send(source.slot.part(0, 10), TAG).wait()
    await receive.wait()
    inode = os.fstat(source.slot.descriptor).st_ino
    assert _mappings(inode) == 2  # the slot's own, and the neighbour's
    for endpoint in first:
        await endpoint.abort()
    assert target.transport.census()["neighbours"] == 1
    assert _mappings(inode) == 2
    for endpoint in second:
        await endpoint.abort()
    assert target.transport.census()["neighbours"] == 0
    await asyncio.to_thread(_until, lambda: _mappings(inode) == 1, 60.0)


async def test_no_page_of_the_source_is_taken_for_its_holes(ends: tuple[End, End]) -> None:
    """A slot's file is mapped whole, but only what it holds: its owner has not paid for more."""
    source, target = ends
    sparse = HostMemory("sparse", 64 * MEBIBYTE, HugePages.NEVER)
    try:
        sparse.prepare(MEBIBYTE, zero=False)
        held = os.fstat(sparse.descriptor).st_blocks
        await source.transport.register(sparse.whole, sparse.descriptor)
        sender, receiver = await joined(*ends)
        receive = receiver.receive(target.slot.part(0, MEBIBYTE), TAG)
        await sender.send(sparse.part(0, MEBIBYTE), TAG).wait()
        await receive.wait()
        assert os.fstat(sparse.descriptor).st_blocks == held
        await source.transport.unregister(sparse.whole)
    finally:
        sparse.close()


@pytest.mark.parametrize("lane", [Lane.POSIX, Lane.CMA, Lane.TCP])
async def test_a_peer_that_is_set_otherwise_is_no_neighbour(
    ends: tuple[End, End], lane: Lane
) -> None:
    source, _ = ends
    other = UcxTransport(lane=lane)
    await other.start()
    try:
        sender = await source.transport.connect(other.address)
        receiver = await other.connect(source.transport.address)
        assert IN_PLACE not in sender.lanes()
        assert IN_PLACE not in receiver.lanes()
        data = source.slot.part(0, 2 * MEBIBYTE)
        data[:] = noise(len(data))
        landed = bytearray(len(data))
        receive = receiver.receive(memoryview(landed), TAG)
        await sender.send(data, TAG).wait()
        await receive.wait()
        assert landed == data
        await sender.abort()
        await receiver.abort()
    finally:
        await other.stop()


def _until(holds: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _mappings(inode: int) -> int:
    with open("/proc/self/maps") as maps:
        return sum(line.split()[4] == str(inode) for line in maps)


def test_the_slots_of_this_suite_are_larger_than_a_piece() -> None:
    from services.mover.transport.operation import COPY_BYTES

    assert SLOT_BYTES > 2 * COPY_BYTES > mmap.PAGESIZE
    assert numpy.frombuffer(noise(64), numpy.uint8).any()
