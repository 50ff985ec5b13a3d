"""A peer that dies in mid-transfer is noticed in seconds; its successor is somebody else."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.mover.transport.base import Endpoint, Request, Transport
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from worldline.errors import TransferFailed

TAG = 7 << 40
SIZE = 4 << 20
NOTICED_S = 6.0


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
    async def start(cls, role: str) -> AsyncIterator[_Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("peer.py")),
            role,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "UCX_LOG_LEVEL": "fatal"},
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(20):
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
        async with asyncio.timeout(20):
            assert await self.process.stdout.readline() == b"posted\n"

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


class _Object(_Outside):
    transport: MemoryTransport

    @classmethod
    @asynccontextmanager
    async def start(cls, role: str) -> AsyncIterator[_Object]:
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


KINDS = {"memory": (MemoryTransport, _Object), "ucx": (UcxTransport, _Process)}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("own_role", ["sender", "receiver"])
async def test_death_in_mid_transfer_is_noticed(kind: str, own_role: str) -> None:
    factory, outside = KINDS[kind]
    own: Transport = factory()
    await own.start()
    other_role = "receiver" if own_role == "sender" else "sender"
    try:
        async with outside.start(other_role) as peer:
            endpoint: Endpoint = await own.connect(peer.address)
            buffers = [bytearray(SIZE) for _ in range(8)]
            post = endpoint.send if own_role == "sender" else endpoint.receive
            requests = [post(memoryview(b), TAG + i) for i, b in enumerate(buffers)]
            await peer.post(other_role, own.address)
            async with asyncio.timeout(10):
                await requests[0].wait()
                await requests[1].wait()
            assert not requests[2].terminal
            await peer.kill()
            killed_at = time.monotonic()
            async with asyncio.timeout(NOTICED_S):
                for request in requests[2:]:
                    with pytest.raises(TransferFailed):
                        await request.wait()
            assert time.monotonic() - killed_at < NOTICED_S
            assert not endpoint.alive
            async with asyncio.timeout(10):
                await endpoint.abort()
        census = own.census()
        assert census["endpoints"] == census["requests_outstanding"] == 0
    finally:
        async with asyncio.timeout(20):
            await own.stop()


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_parked_endpoint_of_a_dead_peer_is_dropped(kind: str) -> None:
    """A peer restarted under its old name has another address; the old one is never used again."""
    factory, outside = KINDS[kind]
    own: Transport = factory()
    await own.start()
    try:
        async with outside.start("receiver") as peer:
            endpoint = await own.connect(peer.address)
            sends = [endpoint.send(memoryview(bytearray(SIZE)), TAG + i) for i in range(2)]
            await peer.post("receiver", own.address)
            for send in sends:
                await asyncio.wait_for(send.wait(), 10)
            await own.park(endpoint)
            assert own.census()["endpoints_parked"] == 1
            await peer.kill()
            async with outside.start("receiver") as successor:
                assert successor.address != peer.address
                fresh = await own.connect(successor.address)
                assert fresh is not endpoint
                sends = [fresh.send(memoryview(bytearray(SIZE)), TAG + i) for i in range(2)]
                await successor.post("receiver", own.address)
                for send in sends:
                    await asyncio.wait_for(send.wait(), 10)
                await fresh.abort()
                async with asyncio.timeout(NOTICED_S):
                    while True:
                        if not endpoint.alive:
                            break
                        await asyncio.sleep(0.01)
    finally:
        async with asyncio.timeout(20):
            await own.stop()
