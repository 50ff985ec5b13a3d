"""A collector as operators have one: OTLP over gRPC, both services; keeps what it is sent."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True)
class Received:
    """One span and who sent it, as `service.name` and `service.instance.id` say."""

    service: str
    instance: str
    raw: Span

    @property
    def name(self) -> str:
        return self.raw.name

    @property
    def trace_id(self) -> str:
        return self.raw.trace_id.hex()

    @property
    def span_id(self) -> str:
        return self.raw.span_id.hex()

    @property
    def parent_id(self) -> str:
        return self.raw.parent_span_id.hex()

    @property
    def failed(self) -> bool:
        return bool(self.raw.status.code == Status.STATUS_CODE_ERROR)

    @property
    def attributes(self) -> dict[str, Any]:
        return plain(self.raw.attributes)

    def event(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.raw.events if each.name == name]
        return plain(found.attributes)

    def linked(self) -> set[tuple[str, str]]:
        return {(each.trace_id.hex(), each.span_id.hex()) for each in self.raw.links}


def plain(pairs: Any) -> dict[str, Any]:
    return {pair.key.removeprefix("worldline."): _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    return None if kind is None else getattr(pair.value, kind)


@dataclass
class Collector:
    """Serves from `__enter__` on, on threads of its own: a busy event loop keeps nobody waiting."""

    address: str = ""
    _spans: list[Received] = field(default_factory=list)
    _metrics: dict[tuple[str, str], dict[str, Metric]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Collector:
        self._server = grpc.server(ThreadPoolExecutor(8))
        add_TraceServiceServicer_to_server(_Traces(self), self._server)
        add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop(None).wait()

    def spans(self, trace_id: str = "") -> list[Received]:
        """What has come, of one trace or of all."""
        with self._lock:
            return [each for each in self._spans if trace_id in ("", each.trace_id)]

    def metrics(self) -> dict[tuple[str, str], dict[str, Metric]]:
        """The newest of each metric, by service and instance."""
        with self._lock:
            return {who: dict(found) for who, found in self._metrics.items()}

    def take_spans(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_spans:
                service, instance = _who(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self._spans += [Received(service, instance, each) for each in scope.spans]

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_metrics:
                known = self._metrics.setdefault(_who(resource.resource.attributes), {})
                for scope in resource.scope_metrics:
                    known.update({each.name: each for each in scope.metrics})


def _who(attributes: Any) -> tuple[str, str]:
    found = plain(attributes)
    return found["service.name"].removeprefix("worldline-"), found["service.instance.id"]


class _Traces(TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(  # noqa: N802 - gRPC's name
        self, request: ExportTraceServiceRequest, context: object
    ) -> ExportTraceServiceResponse:
        self._collector.take_spans(request)
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(  # noqa: N802 - gRPC's name
        self, request: ExportMetricsServiceRequest, context: object
    ) -> ExportMetricsServiceResponse:
        self._collector.take_metrics(request)
        return ExportMetricsServiceResponse()


class BlackHole:
    """A collector that takes every connection and never says a word."""

    def __enter__(self) -> BlackHole:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.close()
