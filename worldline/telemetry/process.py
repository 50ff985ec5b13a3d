"""Telemetry of a process: providers, exporters and a shutdown that cannot hang."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import opentelemetry.sdk.metrics as sdk_metrics
import structlog
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from worldline.errors import InvalidInput
from worldline.telemetry.catalogue import SPANS_DROPPED, Metric
from worldline.telemetry.endpoint import MetricsEndpoint
from worldline.telemetry.export import StoreExporter
from worldline.telemetry.logs import configure_logs
from worldline.telemetry.metrics import Reading, instruments, use_meter
from worldline.telemetry.pipeline import RETRY_S, SpanPipeline
from worldline.telemetry.spans import use_tracer

_log = structlog.get_logger(__name__)

#: With shutdown's own bound: a black-holed collector costs an exit less than 2 s.
SHUTDOWN_S = 1.5


class Telemetry:
    """What `start` began; `shutdown` ends it once."""

    def __init__(
        self,
        tracers: TracerProvider,
        pipelines: Sequence[SpanPipeline],
        meters: sdk_metrics.MeterProvider | None,
        endpoint: MetricsEndpoint | None = None,
    ) -> None:
        self.tracers = tracers
        self._pipelines = list(pipelines)
        self._meters = meters
        self._endpoint = endpoint
        self._closed = False

    @property
    def metrics_address(self) -> str:
        """host:port of the Prometheus endpoint; empty where there is none."""
        return "" if self._endpoint is None else self._endpoint.address

    def observe(self, metric: Metric, read: Reading) -> None:
        """Report what `read` gives whenever somebody collects, until the shutdown.

        `read` is called on a thread of the collector's and must not wait for long.
        """
        if self._meters is not None and not self._closed:
            instruments().observe(metric, read)

    def flush(self, timeout_s: float = SHUTDOWN_S) -> bool:
        """Send what is buffered; False when that took longer than `timeout_s`."""
        return _run_bounded([pipeline.force_flush for pipeline in self._pipelines], timeout_s)

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> bool:
        """Send what is buffered and stop; returns False when `timeout_s` ran out first.

        Blocks for at most `timeout_s`: call it last, when nothing else waits on this thread.
        """
        if self._closed:
            return True
        self._closed = True
        use_tracer(None)
        # What observers read is about to go; the last figures of everything else are still sent.
        use_meter(None)
        work: list[Callable[[], object]] = [pipeline.shutdown for pipeline in self._pipelines]
        if self._meters is not None:
            meters = self._meters
            work.append(lambda: meters.shutdown(timeout_millis=timeout_s * 1e3))
        if self._endpoint is not None:
            work.append(self._endpoint.close)
        ended = _run_bounded(work, timeout_s)
        for pipeline in self._pipelines:
            if pipeline.lost:
                _log.warning("spans.dropped", count=pipeline.lost, exporter=pipeline.name)
        return ended


def start(
    service: str,
    trace_store: str = "",
    *,
    instance: str = "",
    log_format: str = "console",
    log_level: str = "info",
    metrics_listen: str = "",
    span_exporters: Sequence[SpanExporter] = (),
    metric_readers: Sequence[MetricReader] = (),
) -> Telemetry:
    """Begin spans, metrics and logs of this process under `service`.

    Spans go to `trace_store` (host:port of placement; empty: nowhere), to `span_exporters`, and
    to the operator's collector where the standard OTEL_EXPORTER_OTLP_ENDPOINT or
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; metrics likewise with ..._METRICS_ENDPOINT, and to
    whoever asks at `metrics_listen` (host:port, port 0 for a free one; empty: nobody can).
    `instance` tells processes of one service apart (a node id). Never blocks, never fails because
    a collector is away.

    Raises:
        InvalidInput: `metrics_listen` is no address, or an OTEL_ variable is refused.
        Unavailable: `metrics_listen` cannot be bound.
    """
    configure_logs(service, log_format, log_level)
    # First: a port that is taken must leave nothing running.
    endpoint = MetricsEndpoint(metrics_listen) if metrics_listen else None
    resource = Resource.create(
        {"service.name": f"worldline-{service}", "service.instance.id": instance or service}
    )
    # atexit hooks of the SDK would wait 30 s for a black-holed collector: shutdown is ours.
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    try:
        pipelines = _pipelines(trace_store, span_exporters)
        collectors = _collector_readers()
    except Exception as error:  # of classes of the exporters' own: a variable that they refuse
        if endpoint is not None:
            endpoint.close()
        raise InvalidInput(
            f"the collector's settings are refused: {error}; set or unset the OTEL_ variable "
            "that this is about",
            reason="OTEL_INVALID",
            field="OTEL_EXPORTER_OTLP",
        ) from error
    for pipeline in pipelines:
        tracers.add_span_processor(pipeline)
    use_tracer(tracers.get_tracer("worldline"))
    readers = [*metric_readers, *collectors]
    if endpoint is not None:
        readers.append(endpoint.reader)
    meters = None
    if readers:
        meters = sdk_metrics.MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        use_meter(meters.get_meter("worldline"))
    started = Telemetry(tracers, pipelines, meters, endpoint)
    started.observe(SPANS_DROPPED, lambda: _dropped(pipelines))
    return started


def _pipelines(trace_store: str, given: Sequence[SpanExporter]) -> list[SpanPipeline]:
    found = [SpanPipeline(exporter, "store") for exporter in given]
    if trace_store:
        # Placement is back soon, and whoever asks it for a trace should not wait for us.
        found.append(SpanPipeline(StoreExporter(trace_store), "store", retry_max_s=RETRY_S))
    if _collector_wanted("TRACES"):
        exporter = OTLPSpanExporter(timeout=_timeout_s("TRACES"))
        found.append(SpanPipeline(exporter, "collector"))
    return found


def _dropped(pipelines: Sequence[SpanPipeline]) -> Mapping[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for pipeline in pipelines:
        found[(pipeline.name,)] = found.get((pipeline.name,), 0) + pipeline.dropped
    return found


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


def _run_bounded(work: Sequence[Callable[[], object]], timeout_s: float) -> bool:
    """Run each in a thread of its own and wait; the SDK's own calls take no deadline."""
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
