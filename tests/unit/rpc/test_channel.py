"""A peer that comes back at its old address is reached at once by who heard that it did."""

from __future__ import annotations

from typing import Any

import grpc

from worldline.rpc.channel import ChannelPool, call
from worldline.rpc.server import GrpcServer
from worldline.v1 import mover_pb2, mover_pb2_grpc


class _Mover(mover_pb2_grpc.MoverServiceServicer):
    async def Promote(  # noqa: N802
        self, request: mover_pb2.PromoteRequest, context: Any
    ) -> mover_pb2.PromoteResponse:
        return mover_pb2.PromoteResponse()


async def _serve(listen: str) -> GrpcServer:
    server = GrpcServer()
    server.bind(listen)
    server.add(mover_pb2_grpc.add_MoverServiceServicer_to_server, _Mover(), "Mover")
    await server.start()
    return server


async def test_a_dropped_channel_does_not_pass_its_wait_on() -> None:
    server, pool = await _serve("127.0.0.1:0"), ChannelPool()
    address = server.address

    def stub() -> mover_pb2_grpc.MoverServiceStub:
        return mover_pb2_grpc.MoverServiceStub(pool.get(address))

    async def ask() -> None:
        await call(stub().Promote, mover_pb2.PromoteRequest(), timeout_s=5)

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
