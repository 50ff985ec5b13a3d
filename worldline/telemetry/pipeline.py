"""Pipeline: the bounded way of spans to one exporter, on a thread of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence

from opentelemetry import context as otel_context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

#: Spans leave once none has ended for so long: right after a move, for `worldline trace` must show
#: it, and not in the middle of one, where encoding and sending them would keep it waiting.
QUIET_MS = 200
#: Where it is never quiet, they leave this long after the first of them ended.
LATEST_MS = 1_000
#: Spans of one export.
BATCH_MAX = 512
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
        self._batches = _Batches(self._counted, name)

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
        self._batches.add(span)

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
        self._batches.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits now; blocks for as long as the exporter does."""
        return self._batches.flush(timeout_millis / 1e3)


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


class _Batches:
    """Spans that wait for the next export, and the thread that makes it. Its caller bounds them."""

    def __init__(self, exporter: SpanExporter, name: str) -> None:
        self._exporter = exporter
        self._changed = threading.Condition()
        self._queue: deque[ReadableSpan] = deque()
        #: When the first of them ended and when the last one did (monotonic seconds).
        self._first_s = self._last_s = 0.0
        self._exporting = False
        self._flushing = 0
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=f"spans-{name}", daemon=True)
        self._thread.start()

    def add(self, span: ReadableSpan) -> None:
        """Queue it. The thread is woken for the first and where a batch is full, not in between."""
        with self._changed:
            self._last_s = time.monotonic()
            self._queue.append(span)
            if len(self._queue) == 1:
                self._first_s = self._last_s
            if len(self._queue) in (1, BATCH_MAX):
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Have everything exported now; whether it was in time."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._idle, timeout_s)
            finally:
                self._flushing -= 1

    def shutdown(self) -> None:
        """Export what waits, then end; blocks for as long as the exporter does."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join()
        self._exporter.shutdown()

    def _idle(self) -> bool:
        return not self._queue and not self._exporting

    def _run(self) -> None:
        # What the exporter calls is not to be traced, or there would be no end of it.
        otel_context.attach(otel_context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        with self._changed:
            while True:
                pause_s = self._pause_s(time.monotonic())
                if pause_s is None or pause_s > 0:
                    self._changed.wait(pause_s)
                elif not self._queue:
                    return
                else:
                    self._export()

    def _pause_s(self, now_s: float) -> float | None:
        """Until something is to be done; None: until somebody says so."""
        if self._ending:
            return 0.0
        if not self._queue:
            return None
        if self._flushing or len(self._queue) >= BATCH_MAX:
            return 0.0
        return min(self._last_s + QUIET_MS / 1e3, self._first_s + LATEST_MS / 1e3) - now_s

    def _export(self) -> None:
        """One batch; called with the lock held, which it gives up meanwhile."""
        batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
        self._first_s = time.monotonic()
        self._exporting = True
        self._changed.release()
        try:
            # An exporter that raises has refused, and has been counted.
            with contextlib.suppress(Exception):
                self._exporter.export(batch)
        finally:
            self._changed.acquire()
            self._exporting = False
            self._changed.notify_all()
