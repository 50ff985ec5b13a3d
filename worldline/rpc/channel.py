"""Client channels: one place for options, deadlines and the mapping of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc

from worldline.errors import Unavailable
from worldline.rpc.status import from_rpc_error
from worldline.rpc.tracing import TracedChannel

StubT = TypeVar("StubT")

#: Control messages are small; a manifest of 450 leaves and 1,593 granules is 70 kB.
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
PROTOCOL_VERSION = 4

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A peer that vanished without closing its socket is noticed within 10 s on idle streams.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Restarted peers come back on the same port: look again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A channel made anew connects at once: by default it inherits the wait of the one before it.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to `host:port` (or `unix:path`) with the project's options. Close it yourself.

    Calls carry the caller's trace context.
    """
    return TracedChannel(grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS))


async def call(
    method: Callable[..., Any], request: Any, *, timeout_s: float, metadata: Any = None
) -> Any:
    """One unary call with a deadline.

    Raises the peer's own `WorldlineError`; `Unavailable` and `DeadlineExceeded` for transport
    trouble. A deadline that ran out says nothing about whether the call took effect.
    """
    try:
        return await method(request, timeout=timeout_s, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError:
        _raise_where_the_channel_was_closed()
        raise


@asynccontextmanager
async def mapped_errors() -> AsyncIterator[None]:
    """Inside, gRPC's errors come out as the project's: for streams, which `call` cannot wrap."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError:
        _raise_where_the_channel_was_closed()
        raise


def _raise_where_the_channel_was_closed() -> None:
    """gRPC cancels the calls of a channel that is closed under them: nobody cancelled the task."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise Unavailable(
            "the channel was closed while the call was under way", reason="CHANNEL_CLOSED"
        ) from None


class ChannelPool:
    """One channel per address, opened on first use, all closed together."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[tuple[str, type], Any] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `address`."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        return channel

    def stub(self, kind: type[StubT], address: str) -> StubT:
        """A stub of a generated class on the channel to `address`; made once, for all its methods.

        Not to be kept: the channel may be dropped.
        """
        stub: StubT | None = self._stubs.get((address, kind))
        if stub is None:
            made: Callable[[grpc.aio.Channel], StubT] = kind
            stub = self._stubs[address, kind] = made(self.get(address))
        return stub

    async def drop(self, address: str) -> None:
        """Close and forget the channel to a peer that is gone."""
        self._stubs = {key: stub for key, stub in self._stubs.items() if key[0] != address}
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close every channel; calls in flight are cancelled."""
        channels, self._channels = list(self._channels.values()), {}
        self._stubs.clear()
        for channel in channels:
            await channel.close()

    def __len__(self) -> int:
        return len(self._channels)
