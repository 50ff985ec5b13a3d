"""A peer that comes back at its old address is reached at once by who heard that it did."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from worldline.errors import Unavailable
from worldline.rpc.channel import ChannelPool, call
from worldline.rpc.server import GrpcServer
from worldline.v1 import mover_pb2, mover_pb2_grpc


class _Mover(mover_pb2_grpc.MoverServiceServicer):
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def DescribeMover(  # noqa: N802
        self, request: mover_pb2.DescribeMoverRequest, context: Any
    ) -> mover_pb2.DescribeMoverResponse:
        self.asked.set()
        await asyncio.sleep(30)
        return mover_pb2.DescribeMoverResponse()

    async def Promote(  # noqa: N802
        self, request: mover_pb2.PromoteRequest, context: Any
    ) -> mover_pb2.PromoteResponse:
        return mover_pb2.PromoteResponse()


async def _serve(listen: str, mover: _Mover | None = None) -> GrpcServer:
    server = GrpcServer()
    server.bind(listen)
    register = mover_pb2_grpc.add_MoverServiceServicer_to_server
    server.add(register, mover or _Mover(), "Mover")
    await server.start()
    return server


async def test_a_dropped_channel_does_not_pass_its_wait_on() -> None:
    server, pool = await _serve("127.0.0.1:0"), ChannelPool()
    address = server.address

    def stub() -> mover_pb2_grpc.MoverServiceStub:
        return mover_pb2_grpc.MoverServiceStub(pool.get(address))

    async def ask() -> None:
        await call(stub().Promote, mover_pb2.PromoteRequest(), timeout_s=60)

    await ask()
    await server.stop(0)
    # Several attempts to connect: the wait before the next one has grown to half a second.
    waiting = stub().Promote(mover_pb2.PromoteRequest(), timeout=1.0, wait_for_ready=True)
    assert await waiting.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server = await _serve(address)
    await pool.drop(address)
    await ask()
    await pool.close()
    await server.stop(0)


async def test_a_channel_that_is_closed_under_a_call_is_an_answer_and_no_cancellation() -> None:
    """Whoever waited must learn of it: a cancellation would end its task without a word."""
    mover = _Mover()
    server, pool = await _serve("127.0.0.1:0", mover), ChannelPool()
    stub = mover_pb2_grpc.MoverServiceStub(pool.get(server.address))
    request = mover_pb2.DescribeMoverRequest()
    calling = asyncio.ensure_future(call(stub.DescribeMover, request, timeout_s=60))
    await mover.asked.wait()
    await pool.drop(server.address)
    with pytest.raises(Unavailable) as caught:
        await calling
    assert caught.value.reason == "CHANNEL_CLOSED"
    await server.stop(0)


async def test_a_call_that_its_own_task_cancels_is_cancelled() -> None:
    mover = _Mover()
    server, pool = await _serve("127.0.0.1:0", mover), ChannelPool()
    stub = mover_pb2_grpc.MoverServiceStub(pool.get(server.address))
    request = mover_pb2.DescribeMoverRequest()
    calling = asyncio.ensure_future(call(stub.DescribeMover, request, timeout_s=60))
    await mover.asked.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await pool.close()
    await server.stop(0)


async def test_a_stub_lives_as_long_as_its_channel() -> None:
    pool, kind = ChannelPool(), mover_pb2_grpc.MoverServiceStub
    first = pool.stub(kind, "127.0.0.1:1")
    assert pool.stub(kind, "127.0.0.1:1") is first
    assert pool.stub(kind, "127.0.0.1:2") is not first
    await pool.drop("127.0.0.1:1")
    assert pool.stub(kind, "127.0.0.1:1") is not first
    await pool.close()
