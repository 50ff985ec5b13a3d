"""Trace context over gRPC: W3C traceparent in the metadata of every call, both directions.

Only the context travels here; spans are opened by the code that does the work, so that renewals
and listings make none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from worldline.rpc.handlers import wrap_handler

_PROPAGATOR = TraceContextTextMapPropagator()
_KEYS = ("traceparent", "tracestate")


class TracedChannel(grpc.aio.Channel):
    """A channel that adds the caller's trace context to every call.

    A wrapper and not gRPC's client interceptors: those put another call object and another task
    in front of every stream, which changes how cancellation and half-closing behave.
    """

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    async def __aenter__(self) -> TracedChannel:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Close the channel; calls in flight get `grace` seconds."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Connectivity now."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Until connectivity is another than `last_observed_state`."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Until the channel is connected."""
        await self._inner.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """As gRPC's, with trace context."""
        return _traced(self._inner.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """As gRPC's, with trace context."""
        return _traced(self._inner.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """As gRPC's, with trace context."""
        return _traced(self._inner.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """As gRPC's, with trace context."""
        return _traced(self._inner.stream_stream(*args, **kwargs))


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
        return method(*args, metadata=_with_context(metadata), **kwargs)

    return call


def _with_context(metadata: Any) -> Any:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    if not carrier:
        return metadata
    return (*(metadata or ()), *carrier.items())


def traced_handler(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """The handler in the trace context that its caller sent; in none if it sent none."""
    return wrap_handler(handler, answer=_traced_unary, stream=_traced_stream)


def _extract(metadata: Any) -> Context:
    carrier = {key: value for key, value in metadata or () if key in _KEYS}
    # From an empty context: the server's tasks inherit whatever was current when it started.
    return _PROPAGATOR.extract(carrier, context=Context())


def _traced_unary(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        token = otel_context.attach(_extract(context.invocation_metadata()))
        try:
            return await behaviour(request, context)
        finally:
            otel_context.detach(token)

    return unary


def _traced_stream(behaviour: Callable[..., AsyncGenerator[Any]]) -> Callable[..., Any]:
    async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        # Not detached: gRPC gives each call its own task, whose context ends with it, and an
        # abandoned generator is closed from another context, where detaching is an error.
        otel_context.attach(_extract(context.invocation_metadata()))
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                yield response

    return stream
