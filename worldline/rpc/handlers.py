"""Handlers: a gRPC method handler with its behaviour wrapped, whatever its arity."""

from __future__ import annotations

from collections.abc import Callable
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
