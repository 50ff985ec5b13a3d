"""Exporter: carries spans to the embedded trace store over OTLP/gRPC.

A plain exporter of our own instead of the OTLP package's: that one retries inside its call, logs
every failure, and takes endpoint-independent headers from the environment, which belong to the
operator's collector and not to the embedded store.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class StoreExporter(SpanExporter):
    """Sends batches to `address`; a store that is away costs spans, never the service's time.

    Called from the batch processor's thread only, so it may block for `timeout_s`.
    """

    def __init__(self, address: str, timeout_s: float = 1.0) -> None:
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(
            address, options=(("grpc.initial_reconnect_backoff_ms", 100),)
        )
        self._stub = TraceServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One call, no retry: what does not arrive is forgotten."""
        try:
            self._stub.Export(encode_spans(spans), timeout=self._timeout_s)
        except (grpc.RpcError, ValueError):  # ValueError: the channel was closed at shutdown
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the channel; a call in flight ends at once."""
        self._channel.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is buffered here."""
        return True
