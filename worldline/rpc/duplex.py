"""Duplex: a client's half of a bidirectional call, mended where gRPC loses how it ended.

A write that meets the end of its stream makes gRPC replace the peer's status by an INTERNAL of its
own, call the call done, and no longer cancel it, though its tasks live on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from worldline.errors import Unavailable
from worldline.rpc.channel import mapped_errors
from worldline.rpc.status import is_ours


class Duplex:
    """Reads and writes of one call that raise the project's errors, and an end that ends it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, message: Any) -> None:
        """Send one message.

        Raises:
            Unavailable: STREAM_ENDED, the peer ended the stream and gave no reason;
                STREAM_BROKEN, it ended meanwhile and its reason is lost.
            WorldlineError: why the peer ended the stream.
        """
        try:
            async with _mended():
                await self._call.write(message)
        except asyncio.InvalidStateError:
            # Ended before: reading raises the reason, if there is one.
            await self.read()
            raise Unavailable("the peer ended the stream", reason="STREAM_ENDED") from None

    async def done_writing(self) -> None:
        """Say that nothing more will be sent."""
        async with _mended():
            await self._call.done_writing()

    async def read(self) -> Any | None:
        """The peer's next message; None once it has ended the stream well.

        Raises:
            Unavailable: STREAM_BROKEN, the stream ended while something was being sent.
            WorldlineError: why the peer ended the stream.
        """
        async with _mended():
            message = await self._call.read()
        return None if message is grpc.aio.EOF else message

    @property
    def ended(self) -> bool:
        """Whether the call is over: what is read then says how."""
        return bool(self._call.done())

    async def close(self) -> None:
        """End the call; idempotent."""
        if not self._call.cancel():
            self._end_half_done_call()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._call.code()

    def _end_half_done_call(self) -> None:
        # The call below lives on until somebody reads its last messages. There is no public way
        # to reach it; where this one is gone, only its task stays.
        inner = getattr(self._call, "_cython_call", None)
        if inner is not None:
            inner.cancel("the stream was left")


@contextlib.asynccontextmanager
async def _mended() -> Any:
    """As `mapped_errors`; an INTERNAL without details of ours is a stream that broke."""
    async with mapped_errors():
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL or is_ours(error):
                raise
            raise Unavailable(
                "the stream ended while a message was being sent", reason="STREAM_BROKEN"
            ) from error
