"""gRPC servers: bind or say why not, errors mapped in one place, health and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from worldline.errors import InvalidInput, InvariantBroken, Unavailable, WorldlineError
from worldline.rpc.channel import MESSAGE_BYTES_MAX
from worldline.rpc.handlers import WrappingServer, wrap_handler
from worldline.rpc.status import to_status
from worldline.rpc.tracing import traced_handler

_log = structlog.get_logger(__name__)

SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Two processes on one port would share its connections silently: refuse instead.
    ("grpc.so_reuseport", 0),
    # Clients ping every 5 s (worldline.rpc.channel); the default would call that abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def served_handler(handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
    """The handler in its caller's trace context, with what it raises as a status.

    A `WorldlineError` becomes its own; anything else INTERNAL, logged.
    """
    return traced_handler(
        wrap_handler(
            handler,
            answer=lambda behaviour: _wrap_unary(behaviour, method),
            stream=lambda behaviour: _wrap_stream(behaviour, method),
        )
    )


def _wrap_unary(behaviour: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Any]:
    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await behaviour(request, context)
        except Exception as error:
            await _abort(error, method, context)

    return unary


def _wrap_stream(behaviour: Callable[..., AsyncIterator[Any]], method: str) -> Callable[..., Any]:
    async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            async for response in behaviour(request, context):
                yield response
        except Exception as error:
            await _abort(error, method, context)

    return stream


async def _abort(error: Exception, method: str, context: grpc.aio.ServicerContext) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, DecodeError):  # a message in the middle of a stream
        error = InvalidInput(
            "the message does not parse", reason="MESSAGE_GARBLED", field="message"
        )
    if isinstance(error, InvariantBroken) or not isinstance(error, WorldlineError):
        _log.exception("rpc.failed", method=method, exc_info=error)
    if not isinstance(error, WorldlineError):
        error = InvariantBroken(f"{method}: {type(error).__name__}: {error}")
    await context.abort_with_status(to_status(error))


class GrpcServer:
    """A bound server with health and, when asked, reflection.

    `bind` before anything expensive: a taken port must fail within a moment, naming the port.
    """

    def __init__(self, *, reflection_enabled: bool = False) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self._reflection_enabled = reflection_enabled
        self._names: list[str] = []
        self.address = ""

    def bind(self, listen: str) -> str:
        """Bind `host:port`; port 0 picks one. Returns the address that clients dial.

        Raises:
            Unavailable: the address cannot be bound; the message names it.
        """
        try:
            port = self.server.add_insecure_port(listen)
        except RuntimeError as error:
            port = 0
            cause: Exception | None = error
        else:
            cause = None
        if port == 0:
            raise Unavailable(
                f"cannot listen on {listen}: the port is taken or the address is not this host's; "
                "choose another with --listen or WORLDLINE_<SERVICE>_LISTEN",
                reason="LISTEN_FAILED",
                field="listen",
            ) from cause
        host, _, _ = listen.rpartition(":")
        self.address = f"{host}:{port}"
        return self.address

    def add(self, register: Callable[[Any, Any], None], servicer: Any, name: str) -> None:
        """Add a servicer under its full proto name, for health and reflection too."""
        register(servicer, WrappingServer(self.server, served_handler))
        self._names.append(name)

    async def start(self) -> None:
        """Serve, and report SERVING."""
        if self._reflection_enabled:
            names = (*self._names, reflection.SERVICE_NAME, health.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.server)
        await self.server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """NOT_SERVING at once, calls in flight get `grace_s`, then they are cancelled."""
        await self._health.enter_graceful_shutdown()
        async with asyncio.timeout(grace_s + 5):
            await self.server.stop(grace_s)
