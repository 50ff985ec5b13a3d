"""Telemetry of a process: providers, exporters and a shutdown that cannot hang."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import opentelemetry.sdk.metrics as sdk_metrics
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from worldline.telemetry.export import StoreExporter
from worldline.telemetry.logs import configure_logs
from worldline.telemetry.metrics import use_meter
from worldline.telemetry.spans import use_tracer

#: `worldline trace` right after a move must show it: spans leave a fifth of a second later.
SCHEDULE_DELAY_MS = 200
#: With shutdown's own bound: a black-holed collector costs an exit less than 2 s.
SHUTDOWN_S = 1.5


class Telemetry:
    """What `start` began; `shutdown` ends it once."""

    def __init__(
        self, tracers: TracerProvider, processors: Sequence[SpanProcessor], meters: object | None
    ) -> None:
        self.tracers = tracers
        self._processors = list(processors)
        self._meters = meters if isinstance(meters, sdk_metrics.MeterProvider) else None
        self._closed = False

    def flush(self, timeout_s: float = SHUTDOWN_S) -> bool:
        """Send what is buffered; False when that took longer than `timeout_s`."""
        return _run_bounded([processor.force_flush for processor in self._processors], timeout_s)

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> bool:
        """Send what is buffered and stop; returns False when `timeout_s` ran out first.

        Blocks for at most `timeout_s`: call it last, when nothing else waits on this thread.
        """
        if self._closed:
            return True
        self._closed = True
        use_tracer(None)
        use_meter(None)
        work: list[Callable[[], object]] = [processor.shutdown for processor in self._processors]
        if self._meters is not None:
            meters = self._meters
            work.append(lambda: meters.shutdown(timeout_millis=timeout_s * 1e3))
        return _run_bounded(work, timeout_s)


def start(
    service: str,
    trace_store: str = "",
    *,
    instance: str = "",
    log_format: str = "console",
    log_level: str = "info",
    span_exporters: Sequence[SpanExporter] = (),
    metric_readers: Sequence[MetricReader] = (),
) -> Telemetry:
    """Begin spans, metrics and logs of this process under `service`.

    Spans go to `trace_store` (host:port of placement; empty: nowhere), to `span_exporters`, and
    to the operator's collector where the standard OTEL_EXPORTER_OTLP_ENDPOINT or
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; metrics likewise with ..._METRICS_ENDPOINT.
    `instance` tells processes of one service apart (a node id). Never blocks, never fails because
    a collector is away.
    """
    configure_logs(service, log_format, log_level)
    resource = Resource.create(
        {"service.name": f"worldline-{service}", "service.instance.id": instance or service}
    )
    # atexit hooks of the SDK would wait 30 s for a black-holed collector: shutdown is ours.
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    processors = [_batch(exporter) for exporter in _span_exporters(trace_store, span_exporters)]
    for processor in processors:
        tracers.add_span_processor(processor)
    use_tracer(tracers.get_tracer("worldline"))
    readers = [*metric_readers, *_collector_readers()]
    meters = None
    if readers:
        meters = sdk_metrics.MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        use_meter(meters.get_meter("worldline"))
    return Telemetry(tracers, processors, meters)


def _span_exporters(trace_store: str, given: Sequence[SpanExporter]) -> list[SpanExporter]:
    exporters = list(given)
    if trace_store:
        exporters.append(StoreExporter(trace_store))
    if _collector_wanted("TRACES"):
        exporters.append(OTLPSpanExporter(timeout=_timeout_s("TRACES")))
    return exporters


def _collector_readers() -> list[MetricReader]:
    if not _collector_wanted("METRICS"):
        return []
    return [PeriodicExportingMetricReader(OTLPMetricExporter(timeout=_timeout_s("METRICS")))]


def _collector_wanted(signal: str) -> bool:
    """Whether the operator named a collector and did not switch this signal off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name) for name in names)


def _timeout_s(signal: str) -> float:
    """The operator's own timeout if set; else 1 s, so that a shutdown's last export fits."""
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"):
        try:
            return float(os.environ[name])
        except (KeyError, ValueError):
            continue
    return 1.0


def _batch(exporter: SpanExporter) -> BatchSpanProcessor:
    return BatchSpanProcessor(exporter, schedule_delay_millis=SCHEDULE_DELAY_MS)


def _run_bounded(work: Sequence[Callable[[], object]], timeout_s: float) -> bool:
    """Run each in a thread of its own and wait; the SDK's own calls take no deadline."""
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    share_s = timeout_s / max(1, len(threads))
    for thread in threads:
        thread.join(share_s)
    return not any(thread.is_alive() for thread in threads)
