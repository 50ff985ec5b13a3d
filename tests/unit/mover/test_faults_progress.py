"""Progress (fault 16): neither the event loop nor the data plane stops the other, and none sleeps
through what it is waiting for.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import psutil
import pytest

from services.mover.transport import threadplane
from services.mover.transport.base import Endpoint, Reader, Request
from services.mover.transport.lanes import Lane
from services.mover.transport.ucx import UcxTransport
from tests.unit.mover.cluster import MEBIBYTE, until

TAG = 7 << 40
CHUNK_BYTES = 2 * MEBIBYTE
COUNT = 12
#: A deadline, not a measurement: the machine may have much else to do.
PATIENCE_S = 120.0


@dataclass
class Pair:
    """Two transports of this process, an endpoint each way, and one message already through."""

    transports: tuple[UcxTransport, UcxTransport]
    sender: Endpoint
    receiver: Endpoint
    #: Bytes that the data-plane threads have reported moved, at either end.
    read_bytes: list[int] = field(default_factory=list)
    #: What those threads wait for before each report, if anything.
    waits_for: threading.Event | None = None
    #: What was posted last.
    expected: list[bytearray] = field(default_factory=list)

    def stream(self, count: int = COUNT) -> tuple[list[bytearray], list[Request]]:
        """Post so many chunks at both ends; what lands, and the requests."""
        data = [bytearray(random.Random(i).randbytes(CHUNK_BYTES)) for i in range(count)]
        landed = [bytearray(CHUNK_BYTES) for _ in data]
        requests = []
        for index, (source, target) in enumerate(zip(data, landed, strict=True)):
            tag = TAG + 1 + index
            requests.append(self.receiver.receive(memoryview(target), tag, self._reader()))
            requests.append(self.sender.send(memoryview(source), tag, self._reader()))
        self.expected = data
        return landed, requests

    def _reader(self) -> Reader:
        def read(_: int, size_bytes: int) -> None:
            self.read_bytes.append(size_bytes)
            if self.waits_for is not None:
                assert self.waits_for.wait(PATIENCE_S)
                self.waits_for.clear()

        return read

    async def ping(self) -> None:
        receive = self.receiver.receive(memoryview(bytearray(8)), TAG)
        send = self.sender.send(memoryview(bytearray(8)), TAG)
        for request in (send, receive):
            await request.wait()


@pytest.fixture(params=[Lane.AUTO, Lane.POSIX, Lane.TCP], ids=lambda lane: lane.value)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    one, other = UcxTransport(lane=request.param), UcxTransport(lane=request.param)
    await one.start()
    await other.start()
    async with asyncio.timeout(2 * PATIENCE_S):
        made = Pair(
            (one, other), await one.connect(other.address), await other.connect(one.address)
        )
        await made.ping()
        yield made
    await one.stop()
    await other.stop()


def hold_the_interpreter() -> None:
    """One call of C code that runs for a good part of a second and lets no other thread in."""
    sum(range(20_000_000))


async def test_bytes_move_while_the_event_loop_does_something_else(pair: Pair) -> None:
    """The whole window lands and is digested before the loop gets to turn once."""
    landed, requests = pair.stream()
    wanted = 2 * COUNT * CHUNK_BYTES
    give_up_s = time.monotonic() + PATIENCE_S
    while sum(pair.read_bytes) < wanted and time.monotonic() < give_up_s:
        pass  # the loop is busy: nothing of asyncio runs
    assert sum(pair.read_bytes) == wanted
    assert not any(request.terminal for request in requests), "the loop has turned"
    for request in requests:
        await request.wait()
    assert landed == pair.expected


async def test_an_interpreter_that_is_held_delays_bytes_and_loses_none(pair: Pair) -> None:
    """Nor is anybody taken for dead meanwhile (fault 17)."""
    landed, requests = pair.stream()
    for _ in range(2):
        hold_the_interpreter()
        await asyncio.sleep(0)
    for request in requests:
        await request.wait()
    assert landed == pair.expected
    assert pair.sender.alive
    assert pair.receiver.alive


async def test_the_event_loop_turns_while_bytes_move(pair: Pair) -> None:
    """At every step of the data plane it does not go on before the loop has turned once more."""
    turned = pair.waits_for = threading.Event()
    landed, requests = pair.stream()
    while not all(request.terminal for request in requests):
        await asyncio.sleep(0)
        turned.set()
    assert landed == pair.expected
    assert len(pair.read_bytes) >= 2 * COUNT


async def test_nobody_sleeps_through_a_message(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """The sleep is cut short by what it waits for, not by its limit, which is taken away here."""
    monkeypatch.setattr(threadplane, "SLEEP_MS", 3_600_000)
    planes = [transport._plane for transport in pair.transports]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(60):
            await until(lambda: all(plane and plane._sleeping for plane in planes), PATIENCE_S)
            await pair.ping()


async def test_a_busy_plane_with_nothing_to_move_goes_to_sleep(pair: Pair) -> None:
    """A peer that is stuck costs its neighbour no core."""
    stuck = pair.receiver.receive(memoryview(bytearray(8)), TAG + 99)
    plane = pair.transports[1]._plane
    assert plane is not None
    thread_id = plane._thread.native_id
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: plane._sleeping, PATIENCE_S)
        used_s, began_s = cpu_s(thread_id), time.monotonic()
        await asyncio.sleep(0.5)
        used_s, passed_s = cpu_s(thread_id) - used_s, time.monotonic() - began_s
    assert used_s < passed_s / 2
    await pair.receiver.abort()
    assert stuck.terminal


def cpu_s(thread_id: int | None) -> float:
    """Seconds of a processor that a thread of this process has had."""
    return next(
        thread.user_time + thread.system_time
        for thread in psutil.Process().threads()
        if thread.id == thread_id
    )
