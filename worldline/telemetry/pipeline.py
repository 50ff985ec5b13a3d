"""Pipeline: the bounded way of spans to one exporter, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

#: `worldline trace` right after a move must show it: spans leave a fifth of a second later.
SCHEDULE_DELAY_MS = 200
#: Spans that wait for an exporter; a move makes about thirty in all.
QUEUE_MAX = 2_048
#: After a failure the next try waits, twice as long each time: a collector that is away must not
#: cost a service a try a second. Spans wait in the queue meanwhile.
RETRY_S = 0.5
RETRY_MAX_S = 10.0


class SpanPipeline(SpanProcessor):
    """Takes ended spans without ever waiting: what finds the queue full is dropped and counted."""

    def __init__(
        self,
        exporter: SpanExporter,
        name: str,
        queue_max: int = QUEUE_MAX,
        retry_max_s: float = RETRY_MAX_S,
    ) -> None:
        #: For the metric of what was dropped: store or collector.
        self.name = name
        self._queue_max = queue_max
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = 0
        self._counted = _Counted(exporter, self, retry_max_s)
        self._batches = BatchSpanProcessor(
            self._counted,
            max_queue_size=queue_max,
            max_export_batch_size=min(512, queue_max),
            schedule_delay_millis=SCHEDULE_DELAY_MS,
        )

    @property
    def dropped(self) -> int:
        """Spans that the exporter did not take, or that found the queue full."""
        return self._dropped

    @property
    def lost(self) -> int:
        """Those, and those that still wait."""
        return self._dropped + self._waiting

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing yet."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue it, or count it."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        with self._lock:
            if self._waiting >= self._queue_max:
                self._dropped += 1
                return
            self._waiting += 1
        self._batches.on_end(span)

    def handed_over(self, count: int) -> None:
        """So many have left the queue."""
        with self._lock:
            self._waiting -= count

    def refused(self, count: int) -> None:
        """So many were not taken."""
        with self._lock:
            self._dropped += count

    def shutdown(self) -> None:
        """Send what waits and stop; blocks for as long as the exporter does."""
        self._counted.stopping.set()
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits now; blocks for as long as the exporter does."""
        return self._batches.force_flush(timeout_millis)


def retry_after_s(failures: int, retry_max_s: float) -> float:
    """How long to wait after so many failures in a row. Pure."""
    return min(retry_max_s, RETRY_S * 2.0 ** min(failures - 1, 30))


class _Counted(SpanExporter):
    """The exporter, and how it fared."""

    def __init__(self, inner: SpanExporter, pipeline: SpanPipeline, retry_max_s: float) -> None:
        self._inner = inner
        self._pipeline = pipeline
        self._retry_max_s = retry_max_s
        self._failures = 0
        #: Set when the end has begun: the last try is made at once.
        self.stopping = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._failures:
            self.stopping.wait(retry_after_s(self._failures, self._retry_max_s))
        self._pipeline.handed_over(len(spans))
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            self._failures = 0 if result is SpanExportResult.SUCCESS else self._failures + 1
            if self._failures:
                self._pipeline.refused(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
