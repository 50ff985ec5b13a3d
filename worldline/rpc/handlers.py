"""Handlers: gRPC method handlers with their behaviour wrapped, whatever their arity.

Wrapped once where they are registered. gRPC's server interceptors would do it anew at every call,
in tasks of their own, which costs a call about as much as its handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

#: A handler's behaviour in, the behaviour to run in its place out.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_KINDS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def wrap_handler(
    handler: grpc.RpcMethodHandler, *, answer: Wrap, stream: Wrap
) -> grpc.RpcMethodHandler:
    """The same handler with `answer` around one response, `stream` around many."""
    attribute, build = _KINDS[(handler.request_streaming, handler.response_streaming)]
    wrap = stream if handler.response_streaming else answer
    return build(
        wrap(getattr(handler, attribute)),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


class WrappingServer:
    """Where a servicer is registered: hands the server its handlers wrapped."""

    def __init__(
        self,
        server: grpc.aio.Server,
        wrap: Callable[[grpc.RpcMethodHandler, str], grpc.RpcMethodHandler],
    ) -> None:
        """`wrap` gets a handler and its method's full name."""
        self._server = server
        self._wrap = wrap

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As the server's."""
        self._server.add_generic_rpc_handlers(
            tuple(_WrappedHandlers(each, self._wrap) for each in handlers)
        )

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: dict[str, grpc.RpcMethodHandler]
    ) -> None:
        """As the server's; these take precedence over generic ones."""
        wrapped = {
            name: self._wrap(handler, f"/{service_name}/{name}")
            for name, handler in method_handlers.items()
        }
        self._server.add_registered_method_handlers(service_name, wrapped)


class _WrappedHandlers(grpc.GenericRpcHandler):
    def __init__(
        self,
        inner: grpc.GenericRpcHandler,
        wrap: Callable[[grpc.RpcMethodHandler, str], grpc.RpcMethodHandler],
    ) -> None:
        self._inner = inner
        self._wrap = wrap
        self._wrapped: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See gRPC's."""
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            known = self._wrapped[method] = self._wrap(handler, method)
        return known
