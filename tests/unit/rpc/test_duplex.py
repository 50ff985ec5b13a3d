"""A stream's end is known by what the peer said, and leaves no task, whatever met it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from worldline.errors import IntegrityError, InvalidInput, Unavailable
from worldline.rpc.channel import open_channel
from worldline.rpc.duplex import Duplex
from worldline.rpc.server import GrpcServer
from worldline.v1 import mover_pb2, mover_pb2_grpc

OFFER = mover_pb2.LandRequest(offer=mover_pb2.LandOffer())


class _Target(mover_pb2_grpc.MoverServiceServicer):
    """Answers the offer twice and ends the stream: with an error if a reservation is named."""

    async def Land(  # noqa: N802
        self, request_iterator: AsyncIterator[mover_pb2.LandRequest], context: Any
    ) -> AsyncIterator[mover_pb2.LandResponse]:
        first = await anext(aiter(request_iterator))
        for _ in range(2):
            yield mover_pb2.LandResponse(grant=mover_pb2.LandGrant(tag_base=1))
        if first.offer.reservation_id == "held":
            await asyncio.get_running_loop().create_future()
        if first.offer.reservation_id:
            raise IntegrityError("bytes changed", reason="DIGEST_MISMATCH", leaf="kv_cache[3].k")


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer()
    address = server.bind("127.0.0.1:0")
    server.add(mover_pb2_grpc.add_MoverServiceServicer_to_server, _Target(), "Mover")
    await server.start()
    async with open_channel(address) as opened:
        yield opened
    await server.stop(0)


def _land(channel: grpc.aio.Channel) -> Duplex:
    return Duplex(mover_pb2_grpc.MoverServiceStub(channel).Land())


def _offer(reservation_id: str) -> mover_pb2.LandRequest:
    return mover_pb2.LandRequest(offer=mover_pb2.LandOffer(reservation_id=reservation_id))


async def test_the_peers_reason_is_read_and_written(channel: grpc.aio.Channel) -> None:
    stream = _land(channel)
    await stream.write(_offer("one"))
    assert await stream.read() is not None
    assert await stream.read() is not None
    for use in (stream.read, lambda: stream.write(OFFER)):
        with pytest.raises(IntegrityError) as raised:
            await use()
        assert raised.value.leaf == "kv_cache[3].k"
    await stream.close()


async def test_a_channel_that_is_closed_under_a_stream_is_an_answer_and_no_cancellation(
    channel: grpc.aio.Channel,
) -> None:
    """Whoever reads must learn of it: a cancellation would end its task without a word."""
    stream = _land(channel)
    await stream.write(_offer("held"))
    assert await stream.read() is not None
    assert await stream.read() is not None
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    await channel.close()
    with pytest.raises(Unavailable) as raised:
        await reading
    assert raised.value.reason == "CHANNEL_CLOSED"
    await stream.close()


async def test_a_read_that_its_own_task_cancels_is_cancelled(channel: grpc.aio.Channel) -> None:
    stream = _land(channel)
    await stream.write(_offer("held"))
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.close()


async def test_a_stream_that_ended_well(channel: grpc.aio.Channel) -> None:
    stream = _land(channel)
    await stream.write(_offer(""))
    assert await stream.read() is not None
    assert await stream.read() is not None
    assert await stream.read() is None
    with pytest.raises(Unavailable) as raised:
        await stream.write(OFFER)
    assert raised.value.reason == "STREAM_ENDED"
    await stream.close()


async def test_bytes_that_are_no_message_are_the_clients_fault(channel: grpc.aio.Channel) -> None:
    land = channel.stream_stream("/worldline.v1.MoverService/Land", request_serializer=bytes)
    stream = Duplex(land())
    await stream.write(b"\xff" * 9)
    with pytest.raises(InvalidInput) as raised:
        await stream.read()
    assert raised.value.field == "message"
    await stream.close()


async def test_writes_that_meet_the_end_leave_no_task(channel: grpc.aio.Channel) -> None:
    warm = _land(channel)
    await warm.close()
    before = asyncio.all_tasks()
    seen: Counter[str] = Counter()
    for turns in range(100):
        stream = _land(channel)
        await stream.write(_offer("one"))
        await stream.read()
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        try:
            await stream.write(OFFER)  # and the second answer is never read
        except (IntegrityError, Unavailable) as error:
            seen[error.reason] += 1
        await stream.close()
        await stream.close()
    assert set(seen) <= {"DIGEST_MISMATCH", "STREAM_BROKEN"}
    assert seen["STREAM_BROKEN"], "no write met the end: the race was not run"
    left = {task for task in asyncio.all_tasks() - before if not _awaits_a_call(task)}
    if left:
        _, stuck = await asyncio.wait(left, timeout=60)
        assert not stuck


def _awaits_a_call(task: asyncio.Task[Any]) -> bool:
    """The server makes a new one of these for every call that comes."""
    return "_request_registered_call" in repr(task)
