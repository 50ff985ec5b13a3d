from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from enum import Enum

import pytest
import structlog
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from worldline.telemetry import (
    Telemetry,
    configure_logs,
    current_trace_id,
    current_traceparent,
    instruments,
    span,
    start,
)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter: InMemorySpanExporter) -> Iterator[Telemetry]:
    started = start("test", span_exporters=[exporter], instance="node-1")
    yield started
    started.shutdown()


class Colour(Enum):
    RED = 1


def test_without_a_start_nothing_is_traced() -> None:
    with span("move") as active:
        active.set(bytes=3)
        assert current_trace_id() == ""
        assert current_traceparent() == ""
        assert active.trace_id == ""


def test_attributes_are_prefixed_and_encoded(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    with span("push", move_id="m", nothing=None, hash=b"\x01\xff", colour=Colour.RED) as active:
        active.set(epoch=2**64 - 1, rate=1.5, equal=True)
        active.event("granted", lease_ms=5)
    telemetry.flush()
    (one,) = exporter.get_finished_spans()
    assert dict(one.attributes or {}) == {
        "worldline.move_id": "m",
        "worldline.hash": "01ff",
        "worldline.colour": "RED",
        "worldline.epoch": str(2**64 - 1),
        "worldline.rate": 1.5,
        "worldline.equal": True,
    }
    assert one.events[0].name == "granted"
    assert one.resource.attributes["service.name"] == "worldline-test"
    assert one.resource.attributes["service.instance.id"] == "node-1"


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError()])
def test_what_a_block_raises_is_recorded_and_raised(
    telemetry: Telemetry, exporter: InMemorySpanExporter, error: BaseException
) -> None:
    with pytest.raises(type(error)), span("push"):
        raise error
    assert current_trace_id() == ""
    telemetry.flush()
    (one,) = exporter.get_finished_spans()
    assert one.status.status_code is StatusCode.ERROR
    assert type(error).__name__ in (one.status.description or "")


async def test_the_trace_goes_with_tasks(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async def child() -> str:
        with span("child"):
            await asyncio.sleep(0)
            return current_trace_id()

    with span("move") as root:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(child()) for _ in range(3)]
        assert {task.result() for task in tasks} == {root.trace_id}
    telemetry.flush()
    spans = {one.name: one for one in exporter.get_finished_spans()}
    assert spans["child"].parent is not None
    assert spans["child"].parent.span_id == spans["move"].context.span_id


def test_a_span_goes_on_under_a_traceparent(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    with span("move") as root:
        carried = current_traceparent()
    with span("commit", parent=carried) as later:
        assert later.trace_id == root.trace_id
    telemetry.flush()
    commit, move = sorted(exporter.get_finished_spans(), key=lambda one: one.name)
    assert commit.parent is not None
    assert commit.parent.span_id == move.context.span_id


async def test_an_abandoned_stream_ends_its_span(
    telemetry: Telemetry, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream() -> AsyncIterator[int]:
        with span("push"):
            yield 1
            yield 2

    async def abandon() -> None:
        await anext(stream())

    await asyncio.create_task(abandon())
    async with asyncio.timeout(5):
        while not (telemetry.flush() and exporter.get_finished_spans()):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_spans_leave_within_half_a_second(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    with span("move"):
        pass
    deadline_s = time.monotonic() + 2
    began_s = time.monotonic()
    while not exporter.get_finished_spans() and time.monotonic() < deadline_s:
        pass
    assert time.monotonic() - began_s < 0.8


@pytest.mark.parametrize("way", ["trace_store", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_a_black_hole_costs_less_than_two_seconds(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()  # accepts into the backlog and never answers
        address = f"127.0.0.1:{hole.getsockname()[1]}"
        if way != "trace_store":
            monkeypatch.setenv(way, f"http://{address}")
        began_s = time.monotonic()
        started = start("test", address if way == "trace_store" else "")
        for _ in range(20):
            with span("move"):
                instruments().move_ended("committed")
        assert time.monotonic() - began_s < 1
        began_s = time.monotonic()
        started.shutdown()
        assert time.monotonic() - began_s < 2
        started.shutdown()  # a second one does nothing


def test_an_exporter_that_never_returns_is_left_behind() -> None:
    release = threading.Event()

    class Stuck(InMemorySpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            release.wait(30)
            return SpanExportResult.SUCCESS

    started = start("test", span_exporters=[Stuck()])
    with span("move"):
        pass
    began_s = time.monotonic()
    assert not started.shutdown()
    assert time.monotonic() - began_s < 2
    release.set()


def test_after_shutdown_nothing_is_traced(telemetry: Telemetry) -> None:
    telemetry.shutdown()
    with span("move"):
        assert current_trace_id() == ""


def test_metrics_have_the_conventions_names_and_units() -> None:
    reader = InMemoryMetricReader()
    started = start("test", metric_readers=[reader])
    found = instruments()
    found.move_ended("aborted", "PEER_GONE", frozen_ms=20)
    found.phase_ended("push", 1.5)
    found.wire_bytes(1024, "transmit")
    found.path_rate(2e9, "node-1", "node-2")
    found.path_mismatch("node-1", "node-2")
    found.verdict("RECEIVER_BUSY")
    found.block_generated("tiny", 30)
    found.period_missed("tiny", 2)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {name: metric.unit for name, metric in metrics.items()} == {
        "worldline.moves": "{move}",
        "worldline.move.frozen.duration": "s",
        "worldline.move.phase.duration": "s",
        "worldline.wire.io": "By",
        "worldline.path.rate": "By/s",
        "worldline.path.mismatches": "{mismatch}",
        "worldline.admission.verdicts": "{verdict}",
        "worldline.blocks": "{block}",
        "worldline.block.duration": "s",
        "worldline.missed_periods": "{period}",
    }
    (moves,) = metrics["worldline.moves"].data.data_points
    assert moves.attributes == {"worldline.outcome": "aborted", "worldline.reason": "PEER_GONE"}
    (frozen,) = metrics["worldline.move.frozen.duration"].data.data_points
    assert frozen.sum == pytest.approx(0.020)
    assert metrics["worldline.missed_periods"].data.data_points[0].value == 2
    started.shutdown()


def test_json_logs_carry_service_and_trace(
    monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    started = start("mover", span_exporters=[exporter], log_format="json", log_level="info")
    log = structlog.get_logger("test")
    with span("push") as active:
        log.info("chunk.sent", chunk=3)
    log.debug("hidden")
    logging.getLogger("somebody").warning("foreign %s", "line")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["chunk.sent", "foreign line"]
    assert lines[0]["trace_id"] == active.trace_id
    assert (lines[0]["service"], lines[0]["level"], lines[0]["chunk"]) == ("mover", "info", 3)
    assert "trace_id" not in lines[1]
    started.shutdown()


def test_console_logs_are_plain_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure_logs("mover", "console", "warning")
    structlog.get_logger("test").warning("slot.poisoned", slot_index=2)
    assert "slot.poisoned" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()
