"""Pipeline: bounded, counted, and never waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import cast

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from worldline.telemetry import span, start
from worldline.telemetry.pipeline import BATCH_MAX, LATEST_MS, QUIET_MS, SpanPipeline, _Batches

#: Longer than a loaded machine takes for anything here.
_PATIENT_S = 60


class Held(SpanExporter):
    """Holds its first batch until it is let go; then answers `result`."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.taken = 0
        self._result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.release.wait(_PATIENT_S)
        self.taken += len(spans)
        return self._result


def make(pipeline: SpanPipeline, count: int, provider: TracerProvider) -> None:
    tracer = provider.get_tracer("test")
    for _ in range(count):
        tracer.start_span("one").end()


def piped(exporter: SpanExporter, queue_max: int) -> tuple[SpanPipeline, TracerProvider]:
    pipeline = SpanPipeline(exporter, "collector", queue_max)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(pipeline)
    return pipeline, provider


def test_a_stuck_exporter_fills_the_queue_and_no_more() -> None:
    exporter = Held()
    pipeline, provider = piped(exporter, queue_max=8)
    make(pipeline, 1, provider)
    assert exporter.entered.wait(_PATIENT_S)
    make(pipeline, 20, provider)  # returns at once: nobody waits for the exporter
    assert pipeline.dropped == 12
    assert pipeline.lost == 20
    exporter.release.set()
    pipeline.shutdown()
    assert exporter.taken == 9
    assert pipeline.lost == pipeline.dropped == 12


def test_spans_wait_for_quiet_but_not_for_ever() -> None:
    batches = _Batches.__new__(_Batches)
    batches._ending, batches._flushing = False, 0
    batches._queue = deque()
    assert batches._pause_s(7.0) is None, "nothing waits"
    batches._queue.append(cast(ReadableSpan, object()))
    batches._first_s, batches._last_s = 5.0, 5.5
    assert batches._pause_s(5.6) == pytest.approx(QUIET_MS / 1e3 - 0.1)
    batches._last_s = 5.9
    assert batches._pause_s(5.9) == pytest.approx(LATEST_MS / 1e3 - 0.9)
    batches._flushing = 1
    assert batches._pause_s(5.9) == 0.0
    batches._flushing = 0
    batches._queue.extend(cast(ReadableSpan, object()) for _ in range(BATCH_MAX))
    assert batches._pause_s(5.9) == 0.0


def test_what_is_refused_is_counted() -> None:
    exporter = Held(SpanExportResult.FAILURE)
    exporter.release.set()
    pipeline, provider = piped(exporter, queue_max=100)
    make(pipeline, 5, provider)
    pipeline.shutdown()
    assert pipeline.dropped == 5


def test_an_exporter_that_raises_is_one_that_refused() -> None:
    class Broken(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise ValueError("closed")

    pipeline, provider = piped(Broken(), queue_max=100)
    make(pipeline, 3, provider)
    pipeline.shutdown()
    assert pipeline.dropped == 3


class Flaky(SpanExporter):
    """Answers what it is told to, one after the other."""

    def __init__(self, *results: SpanExportResult) -> None:
        self._results = list(results)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._results.pop(0)


def test_tries_get_rarer_while_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, taken = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    pipeline, provider = piped(
        Flaky(failed, failed, failed, failed, failed, failed, taken, taken, failed, taken), 100
    )
    waits: list[float] = []

    def noted(timeout: float) -> bool:
        waits.append(timeout)
        return False

    monkeypatch.setattr(pipeline._counted.stopping, "wait", noted)
    for _ in range(10):
        make(pipeline, 1, provider)
        pipeline.force_flush()
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 0.5]
    assert pipeline.dropped == 7
    pipeline.shutdown()


def test_an_end_waits_for_no_next_try() -> None:
    """However long the next try would have waited: this returns."""
    exporter = Held(SpanExportResult.FAILURE)
    exporter.release.set()
    pipeline = SpanPipeline(exporter, "collector", retry_max_s=3_600.0)
    pipeline._counted._failures = 30
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(pipeline)
    make(pipeline, 1, provider)
    pipeline.shutdown()
    assert pipeline.dropped == 1


def test_dropped_spans_are_a_metric() -> None:
    exporter, reader = Held(SpanExportResult.FAILURE), InMemoryMetricReader()
    exporter.release.set()
    started = start("test", span_exporters=[exporter], metric_readers=[reader])
    with span("move"):
        pass
    assert started.flush(_PATIENT_S)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    (point,) = found["worldline.spans.dropped"].data.data_points  # type: ignore[union-attr]
    assert point.value == 1  # type: ignore[union-attr]
    assert point.attributes == {"worldline.exporter": "store"}
    started.shutdown()
