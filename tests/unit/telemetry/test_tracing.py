"""Trace context through real gRPC calls of all four arities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from worldline.errors import NotFound
from worldline.rpc.channel import call, mapped_errors, open_channel
from worldline.rpc.server import GrpcServer
from worldline.telemetry import current_trace_id, span, start

_METHODS = ("uu", "us", "su", "ss")


@pytest.fixture(autouse=True)
def telemetry() -> Iterator[None]:
    started = start("test")
    yield
    started.shutdown()


class Echo:
    """Answers the trace id that it runs in, also from a task of its own."""

    async def uu(self, request: bytes, context: Any) -> bytes:
        if request == b"fail":
            raise NotFound("no", field="request")
        return await asyncio.create_task(_current())

    async def us(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(2):
            yield await _current()
            await asyncio.sleep(0)

    async def su(self, requests: Any, context: Any) -> bytes:
        async for _ in requests:
            pass
        return await _current()

    async def ss(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"fail":
                raise NotFound("no", field="request")
            yield await _current()


async def _current() -> bytes:
    await asyncio.sleep(0)
    return current_trace_id().encode()


def register(echo: Echo, server: Any) -> None:
    handlers = {
        "uu": grpc.unary_unary_rpc_method_handler(echo.uu),
        "us": grpc.unary_stream_rpc_method_handler(echo.us),
        "su": grpc.stream_unary_rpc_method_handler(echo.su),
        "ss": grpc.stream_stream_rpc_method_handler(echo.ss),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer()
    address = server.bind("127.0.0.1:0")
    server.add(register, Echo(), "echo")
    # A server that is started inside a span must not run its calls in it.
    with span("start"):
        await server.start()
    async with open_channel(address) as opened:
        yield opened
    await server.stop(0)


async def ask(channel: grpc.aio.Channel, method: str, request: bytes = b"x") -> list[bytes]:
    path = f"/echo/{method}"
    if method == "uu":
        return [await call(channel.unary_unary(path), request, timeout_s=60)]
    if method == "us":
        return [each async for each in channel.unary_stream(path)(request, timeout=60)]

    async def requests() -> AsyncIterator[bytes]:
        yield request

    if method == "su":
        return [await channel.stream_unary(path)(requests(), timeout=60)]
    stream = channel.stream_stream(path)(timeout=60)
    async with mapped_errors():
        await stream.write(request)
        first = await stream.read()
        await stream.write(request)
        second = await stream.read()
        await stream.done_writing()
    return [first, second]


@pytest.mark.parametrize("method", _METHODS)
async def test_the_callers_trace_is_the_handlers(channel: grpc.aio.Channel, method: str) -> None:
    with span("move") as active:
        answers = await ask(channel, method)
    assert {answer.decode() for answer in answers} == {active.trace_id}


@pytest.mark.parametrize("method", _METHODS)
async def test_without_a_trace_there_is_none(channel: grpc.aio.Channel, method: str) -> None:
    assert set(await ask(channel, method)) == {b""}


@pytest.mark.parametrize("method", ["uu", "ss"])
async def test_errors_still_come_out_as_ours(channel: grpc.aio.Channel, method: str) -> None:
    with span("move"), pytest.raises(NotFound) as caught:
        await ask(channel, method, b"fail")
    assert caught.value.field == "request"


async def test_concurrent_calls_keep_their_own(channel: grpc.aio.Channel) -> None:
    async def one() -> bool:
        with span("move") as active:
            answers = await ask(channel, "ss")
            return {answer.decode() for answer in answers} == {active.trace_id}

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one()) for _ in range(20)]
    assert all(task.result() for task in tasks)
