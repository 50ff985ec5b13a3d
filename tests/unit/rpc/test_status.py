"""Errors survive the wire: class, reason, field, leaf, granule, retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import (
    InvalidInput,
    InvariantBroken,
    Unavailable,
    WorldlineError,
    error_classes,
)
from worldline.rpc.channel import MESSAGE_BYTES_MAX, call, mapped_errors, open_channel
from worldline.rpc.server import GrpcServer
from worldline.rpc.status import from_rpc_error, to_status
from worldline.v1 import placement_pb2, placement_pb2_grpc

text = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=40)


@given(
    cls=st.sampled_from(error_classes()),
    message=text,
    reason=st.none() | text,
    field=st.none() | text,
    leaf=st.none() | text,
    granule=st.none() | st.integers(0, 2**40),
    retry_after_ms=st.none() | st.integers(0, 10**9),
)
def test_every_error_survives_its_status(cls, message, **facts) -> None:
    sent = cls(message, **facts)
    status = to_status(sent)
    received = from_rpc_error(
        grpc.aio.AioRpcError(
            status.code,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*status.trailing_metadata),
            details=status.details,
        )
    )
    assert type(received) is cls
    assert received.message == message
    assert received.reason == (facts["reason"] or cls.default_reason)
    assert received.field == facts["field"]
    assert received.leaf == facts["leaf"]
    assert received.granule == facts["granule"]
    assert received.retry_after_ms == facts["retry_after_ms"]


class Failing(placement_pb2_grpc.PlacementServiceServicer):
    """Raises what it is told to, from a unary and from a streaming handler."""

    def __init__(self) -> None:
        self.error: Exception = ValueError("unset")

    async def ListNodes(self, request, context):  # noqa: N802
        raise self.error

    async def MoveSession(self, request, context) -> AsyncIterator[object]:  # noqa: N802
        yield placement_pb2.MoveSessionResponse()
        raise self.error


@pytest.fixture
async def failing() -> AsyncIterator[tuple[Failing, placement_pb2_grpc.PlacementServiceStub]]:
    server, servicer = GrpcServer(reflection_enabled=True), Failing()
    address = server.bind("127.0.0.1:0")
    server.add(
        placement_pb2_grpc.add_PlacementServiceServicer_to_server,
        servicer,
        "worldline.v1.PlacementService",
    )
    await server.start()
    channel = open_channel(address)
    yield servicer, placement_pb2_grpc.PlacementServiceStub(channel)
    await channel.close()
    await server.stop(0)


async def test_a_unary_handlers_error_arrives_typed(failing) -> None:
    servicer, stub = failing
    servicer.error = InvalidInput("no such node n9", field="target_node_id")
    with pytest.raises(InvalidInput) as caught:
        await call(stub.ListNodes, placement_pb2.ListNodesRequest(), timeout_s=60)
    assert caught.value.field == "target_node_id"


async def test_a_streams_error_arrives_typed_after_its_messages(failing) -> None:
    servicer, stub = failing
    servicer.error = WorldlineError("x", reason="ODD")
    received = 0
    with pytest.raises(WorldlineError) as caught:
        async with asyncio.timeout(60), mapped_errors():
            async for _ in stub.MoveSession(placement_pb2.MoveSessionRequest(), timeout=60):
                received += 1
    assert received == 1
    assert caught.value.reason == "ODD"


async def test_an_unexpected_exception_is_our_bug_not_the_users(failing) -> None:
    servicer, stub = failing
    servicer.error = KeyError("boom")
    with pytest.raises(InvariantBroken, match="boom"):
        await call(stub.ListNodes, placement_pb2.ListNodesRequest(), timeout_s=60)


async def test_a_message_over_the_limit_is_refused_by_name(failing) -> None:
    _, stub = failing
    request = placement_pb2.ResolveSessionRequest(session_id="x" * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(InvalidInput) as caught:
        await call(stub.ResolveSession, request, timeout_s=60)
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


async def test_a_taken_port_is_named_at_once() -> None:
    first, second = GrpcServer(), GrpcServer()
    address = first.bind("127.0.0.1:0")
    with pytest.raises(Unavailable, match=address) as caught:
        second.bind(address)
    assert caught.value.reason == "LISTEN_FAILED"
    await first.stop(0)
    await second.stop(0)


async def test_nobody_listening_is_unavailable() -> None:
    server = GrpcServer()
    address = server.bind("127.0.0.1:0")
    await server.start()
    await server.stop(0)
    channel = open_channel(address)
    stub = placement_pb2_grpc.PlacementServiceStub(channel)
    with pytest.raises(Unavailable):
        await call(stub.ListNodes, placement_pb2.ListNodesRequest(), timeout_s=60)
    await channel.close()
