"""A peer that dies in mid-transfer is noticed in seconds, whatever lane there is between us.

Its successor is somebody else, and its memory is let go.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.mover.memory.host import HostMemory
from services.mover.transport.base import Endpoint, Request, Transport
from services.mover.transport.lanes import Lane
from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.threadplane import ThreadPlane
from services.mover.transport.ucx import UcxTransport
from worldline.errors import TransferFailed

TAG = 7 << 40
SIZE = 4 << 20
#: A deadline, not a measurement: `KEEPALIVE_INTERVAL` in `lanes` makes it a second or so.
NOTICED_S = 60.0


class _Outside:
    """A killable peer: a process for UCX, an object for memory."""

    def __init__(self, address: bytes) -> None:
        self.address = address
        self.posted: list[Request] = []

    async def post(self, role: str, peer: bytes) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        raise NotImplementedError


class _Process(_Outside):
    process: asyncio.subprocess.Process

    @classmethod
    @asynccontextmanager
    async def start(cls, role: str, lane: str) -> AsyncIterator[_Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("peer.py")),
            role,
            lane,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "UCX_LOG_LEVEL": "fatal"},
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                line = await process.stdout.readline()
            peer = cls(bytes.fromhex(line.decode()))
            peer.process = process
            yield peer
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def post(self, role: str, peer: bytes) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(peer.hex().encode() + b"\n")
        await self.process.stdin.drain()
        async with asyncio.timeout(60):
            assert await self.process.stdout.readline() == b"posted\n"

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


class _Object(_Outside):
    transport: MemoryTransport

    @classmethod
    @asynccontextmanager
    async def start(cls, role: str, lane: str) -> AsyncIterator[_Object]:
        transport = MemoryTransport()
        await transport.start()
        peer = cls(transport.address)
        peer.transport = transport
        yield peer
        await transport.stop()

    async def post(self, role: str, peer: bytes) -> None:
        endpoint = await self.transport.connect(peer)
        buffers = [bytearray(SIZE) for _ in range(2)]
        post = endpoint.receive if role == "receiver" else endpoint.send
        self.posted = [post(memoryview(b), TAG + i) for i, b in enumerate(buffers)]

    async def kill(self) -> None:
        self.transport.die()


@dataclass(frozen=True)
class Kind:
    """A transport, over one lane, and how a killable peer of it is made."""

    outside: type[_Process] | type[_Object]
    lane: Lane = Lane.AUTO
    plane: type[ThreadPlane | LoopPlane] = ThreadPlane

    def transport(self) -> Transport:
        if self.outside is _Object:
            return MemoryTransport()
        return UcxTransport(lane=self.lane, plane=self.plane)

    def peer(self, role: str) -> AbstractAsyncContextManager[_Outside]:
        return self.outside.start(role, self.lane.value)


KINDS = {
    "memory": Kind(_Object),
    **{f"ucx-{lane.value}": Kind(_Process, lane) for lane in Lane},
    **{
        f"ucx-{lane.value}-on-the-loop": Kind(_Process, lane, LoopPlane)
        for lane in (Lane.POSIX, Lane.TCP)
    },
}


@asynccontextmanager
async def slot(transport: Transport) -> AsyncIterator[HostMemory]:
    """Registered memory of eight messages, which a neighbour may map."""
    memory = HostMemory("slot", 8 * SIZE)
    memory.prepare(8 * SIZE, zero=False)
    await transport.register(memory.whole, memory.descriptor)
    try:
        yield memory
    finally:
        await transport.unregister(memory.whole)
        memory.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("own_role", ["sender", "receiver"])
async def test_death_in_mid_transfer_is_noticed(kind: str, own_role: str) -> None:
    own = KINDS[kind].transport()
    await own.start()
    other_role = "receiver" if own_role == "sender" else "sender"
    try:
        async with KINDS[kind].peer(other_role) as peer, slot(own) as memory:
            endpoint: Endpoint = await own.connect(peer.address)
            post = endpoint.send if own_role == "sender" else endpoint.receive
            requests = [post(memory.part(i * SIZE, SIZE), TAG + i) for i in range(8)]
            await peer.post(other_role, own.address)
            async with asyncio.timeout(60):
                await requests[0].wait()
                await requests[1].wait()
            assert not requests[2].terminal
            await peer.kill()
            async with asyncio.timeout(NOTICED_S):
                for request in requests[2:]:
                    with pytest.raises(TransferFailed):
                        await request.wait()
            assert not endpoint.alive
            async with asyncio.timeout(60):
                await endpoint.abort()
        census = own.census()
        assert census["endpoints"] == census["requests_outstanding"] == 0
        assert census.get("neighbours", 0) == 0
    finally:
        async with asyncio.timeout(60):
            await own.stop()


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_parked_endpoint_of_a_dead_peer_is_dropped(kind: str) -> None:
    """A peer restarted under its old name has another address; the old one is never used again."""
    own = KINDS[kind].transport()
    await own.start()
    try:
        async with KINDS[kind].peer("sender") as peer, slot(own) as memory:
            endpoint = await own.connect(peer.address)
            await _receive_two(endpoint, peer, own, memory)
            await own.park(endpoint)
            assert own.census()["endpoints_parked"] == 1
            await peer.kill()
            async with KINDS[kind].peer("sender") as successor:
                assert successor.address != peer.address
                fresh = await own.connect(successor.address)
                assert fresh is not endpoint
                await _receive_two(fresh, successor, own, memory)
                await fresh.abort()
                deadline_s = time.monotonic() + NOTICED_S
                while endpoint.alive or own.census().get("neighbours", 0):
                    assert time.monotonic() < deadline_s
                    await asyncio.sleep(0.01)
    finally:
        async with asyncio.timeout(60):
            await own.stop()


async def _receive_two(
    endpoint: Endpoint, peer: _Outside, own: Transport, memory: HostMemory
) -> None:
    receives = [endpoint.receive(memory.part(i * SIZE, SIZE), TAG + i) for i in range(2)]
    await peer.post("sender", own.address)
    for receive in receives:
        await asyncio.wait_for(receive.wait(), 60)
