"""What recording costs the thread that records: nanoseconds a call, off and on.

    python -m bench.recording
    python -m bench.recording --json recording.json

`off` is a process without a collector and without an endpoint, `on` one whose figures somebody
reads. Spans that are on go to an exporter that forgets them, on its own thread; what that thread
takes of the interpreter counts. `bare` is the same figure given to OpenTelemetry's own instrument
with attributes made anew for each call: what the guard of the labels costs or saves is the
difference. Each figure is the median of the repeats; the lowest and highest are beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from worldline.telemetry import Telemetry, instruments, span, start
from worldline.telemetry.catalogue import BLOCK, BLOCKS


class _Forgetting(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds of one call."""

    what: str
    state: str
    median_ns: float
    least_ns: float
    most_ns: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="of each figure")
    parser.add_argument("--calls", type=int, default=5_000, help="in each repeat")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    costs: list[Cost] = []
    for state, begin in (("off", _off), ("on", _on)):
        telemetry = begin()
        sys.stderr.write(f"recording, {state}\n")
        costs += [
            _measured(name, state, call, options.repeats, options.calls)
            for name, call in _CALLS.items()
        ]
        telemetry.shutdown()
    costs.append(_measured("block_generated", "bare", _bare(), options.repeats, options.calls))
    print(f"{'WHAT':<18}{'STATE':<7}{'NS':>8}{'LEAST':>8}{'MOST':>8}")
    for each in costs:
        print(
            f"{each.what:<18}{each.state:<7}{each.median_ns:>8.0f}{each.least_ns:>8.0f}"
            f"{each.most_ns:>8.0f}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in costs], indent=2) + "\n")
    return 0


def _off() -> Telemetry:
    return start("bench", log_level="error")


def _on() -> Telemetry:
    return start(
        "bench",
        log_level="error",
        metric_readers=[InMemoryMetricReader()],
        span_exporters=[_Forgetting()],
    )


def _bare() -> Callable[[], None]:
    meter = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False).get_meter("bare")
    blocks = meter.create_counter(BLOCKS.name, BLOCKS.unit)
    block = meter.create_histogram(
        BLOCK.name, BLOCK.unit, explicit_bucket_boundaries_advisory=BLOCK.bounds
    )

    def call() -> None:
        attributes = {"worldline.preset": "tiny"}
        blocks.add(1, attributes)
        block.record(30.0 / 1e3, attributes)

    return call


def _one_span() -> None:
    with span("mover.push", move_id="move-1", bytes=1_670_124_960):
        pass


_CALLS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "block_generated": lambda: instruments().block_generated("tiny", 30.0),
    "quantum_ended": lambda: instruments().quantum_ended("tiny", 7.0),
    "wire_bytes": lambda: instruments().wire_bytes(1 << 23, "transmit"),
    "path_rate": lambda: instruments().path_rate(2e9, "node-1", "node-2", verified=True),
    "span": _one_span,
}


def _measured(what: str, state: str, call: Callable[[], None], repeats: int, calls: int) -> Cost:
    found = []
    for number in range(repeats + 1):
        began_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        if number:  # the first warms up
            found.append((time.perf_counter_ns() - began_ns) / calls)
    return Cost(what, state, statistics.median(found), min(found), max(found))


if __name__ == "__main__":
    raise SystemExit(main())
