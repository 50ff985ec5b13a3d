"""Play stream: one joined bidirectional call to one engine."""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from worldline.errors import DeadlineExceeded, InvalidInput, Unavailable, WorldlineError
from worldline.rpc.duplex import Duplex
from worldline.sdk.actions import Action
from worldline.sdk.block import Block, block_from_proto
from worldline.v1 import engine_pb2, engine_pb2_grpc

#: What an engine sends, parsed.
Event = engine_pb2.Joined | engine_pb2.Moved | Block


class PlayStream:
    """Opened, joined once, then actions out and events in."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        join: engine_pb2.Join,
        metadata: tuple[tuple[str, str], ...],
    ) -> None:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        self._duplex = Duplex(stub.Play(metadata=metadata))
        self._join = join
        self._pushed_back: Event | None = None

    async def join(self, timeout_s: float) -> engine_pb2.Joined | None:
        """Send the join and wait for the answer; None: the engine only drains what it still has.

        Raises:
            DeadlineExceeded: no answer within `timeout_s`.
            WorldlineError: the engine's own.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(engine_pb2.PlayRequest(join=self._join))
                event = await self.read()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the engine did not answer the join in {timeout_s:g} s"
            ) from None
        if isinstance(event, engine_pb2.Joined):
            return event
        self._pushed_back = event
        return None

    async def send(self, block_index: int, action: Action) -> None:
        """Send one action. A broken stream shows in `read`, which says how it broke."""
        await self._write(engine_pb2.PlayRequest(action=action.to_proto(block_index)))

    async def read(self) -> Event:
        """The next event.

        Raises:
            Unavailable: the stream ended without saying where the world went. Where it broke
                while an action was sent, last messages are lost: joining again brings them back.
            WorldlineError: the engine's own.
        """
        if self._pushed_back is not None:
            event, self._pushed_back = self._pushed_back, None
            return event
        message = await self._duplex.read()
        if message is None:
            raise Unavailable("the engine ended the stream", reason="STREAM_ENDED")
        return _parse(message)

    async def close(self) -> None:
        """End the call; idempotent."""
        await self._duplex.close()

    async def _write(self, request: engine_pb2.PlayRequest) -> None:
        with contextlib.suppress(WorldlineError):
            await self._duplex.write(request)


def _parse(message: engine_pb2.PlayResponse) -> Event:
    kind = message.WhichOneof("event")
    if kind == "block":
        return block_from_proto(message.block)
    if kind == "moved":
        return message.moved
    if kind == "joined":
        return message.joined
    raise InvalidInput("the engine sent an event that is unknown here", field="event")
