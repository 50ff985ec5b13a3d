from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from worldline.telemetry import (
    Telemetry,
    carried,
    configure_logs,
    current_trace_id,
    current_traceparent,
    instruments,
    lasting_span,
    span,
    start,
)
from worldline.telemetry.pipeline import QUIET_MS


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
    async with asyncio.timeout(60):
        while not (telemetry.flush() and exporter.get_finished_spans()):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_spans_leave_by_themselves(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    with span("move"):
        pass
    deadline_s = time.monotonic() + 60
    while not exporter.get_finished_spans():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_spans_leave_before_anybody_looks() -> None:
    """`worldline trace` right after a move waits for two seconds."""
    assert QUIET_MS <= 500


class Hole:
    """A collector that is none: how it is not there, and where."""

    def __init__(self, kind: str) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._queued: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        if kind == "down":
            self._listener.close()
        elif kind == "silent":
            self._listener.listen()  # accepts into the backlog and never answers
        else:
            # Full: the kernel drops every further SYN.
            self._listener.listen(0)
            for _ in range(2):
                waiting = socket.socket()
                waiting.setblocking(False)
                waiting.connect_ex(self._listener.getsockname())
                self._queued.append(waiting)

    def __enter__(self) -> Hole:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in (self._listener, *self._queued):
            each.close()


@pytest.mark.parametrize("kind", ["down", "silent", "drops SYNs"])
@pytest.mark.parametrize("way", ["trace_store", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_a_collector_that_is_none_is_not_waited_for(
    way: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording never waits; the end does for no longer than it is told.

    The SDK's own shutdown takes 30 s; what is asserted is far from that, and from what a loaded
    machine may add.
    """
    with Hole(kind) as hole:
        if way != "trace_store":
            monkeypatch.setenv(way, f"http://{hole.address}")
        began_s = time.monotonic()
        started = start("test", hole.address if way == "trace_store" else "")
        for _ in range(20):
            with span("move"):
                instruments().move_ended("committed")
        assert time.monotonic() - began_s < 20
        began_s = time.monotonic()
        started.shutdown(0.5)
        assert time.monotonic() - began_s < 20
        started.shutdown()  # a second one does nothing


def test_an_exporter_that_never_returns_is_left_behind() -> None:
    release = threading.Event()

    class Stuck(InMemorySpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            release.wait(60)
            return SpanExportResult.SUCCESS

    started = start("test", span_exporters=[Stuck()])
    with span("move"):
        pass
    assert not started.shutdown(0.5)
    assert not release.is_set()
    release.set()


def test_one_stuck_exporter_costs_the_others_nothing() -> None:
    """Each is given the whole time, beside the other."""
    release, good = threading.Event(), InMemorySpanExporter()

    class Stuck(InMemorySpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            release.wait(60)
            return SpanExportResult.SUCCESS

    class Late(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            assert shutting_down.wait(60)
            return good.export(spans)

    shutting_down = threading.Event()
    started = start("test", span_exporters=[Stuck(), Late()])
    with span("move"):
        pass
    ending = threading.Thread(target=started.shutdown, args=(60,))
    ending.start()
    shutting_down.set()
    deadline_s = time.monotonic() + 60
    while not good.get_finished_spans():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    release.set()
    ending.join(60)
    assert not ending.is_alive()


def test_spans_that_do_not_arrive_are_said_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)

    class Refusing(InMemorySpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.FAILURE

    started = start("test", span_exporters=[Refusing()], log_format="json")
    with span("move"):
        pass
    started.shutdown(60)
    (line,) = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert (line["event"], line["count"]) == ("spans.dropped", 1)


def test_links_point_to_other_traces(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    with span("session.open") as opening:
        opened = opening.traceparent
    with span("move", links=[opened, "", "garbage"]) as move:
        moved = move.traceparent
    with lasting_span("engine.play") as stream:
        # It is beside the work, not around it.
        assert current_trace_id() == ""
        stream.link(moved, move_id="m")
        stream.link("")
        stream.event("frozen", block_index=3)
    telemetry.flush()
    found = {one.name: one for one in exporter.get_finished_spans()}
    ids = {name: (one.context.trace_id, one.context.span_id) for name, one in found.items()}
    assert len({trace_id for trace_id, _ in ids.values()}) == 3
    assert linked(found["move"]) == [ids["session.open"]]
    assert linked(found["engine.play"]) == [ids["move"]]
    assert dict(found["engine.play"].links[0].attributes or {}) == {"worldline.move_id": "m"}
    assert dict(found["engine.play"].events[0].attributes or {}) == {"worldline.block_index": 3}


def linked(one: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in one.links]


def test_a_lasting_span_ends_however_it_ends(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(asyncio.CancelledError), lasting_span("engine.play"):
        raise asyncio.CancelledError
    telemetry.flush()
    (one,) = exporter.get_finished_spans()
    assert one.status.status_code is StatusCode.ERROR


async def test_the_trace_goes_to_a_thread_where_it_is_carried(telemetry: Telemetry) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool, span("move") as move:
        assert await asyncio.to_thread(current_trace_id) == move.trace_id
        assert await loop.run_in_executor(pool, carried(current_trace_id)) == move.trace_id
        # What makes it needed: an executor takes nothing along.
        assert await loop.run_in_executor(pool, current_trace_id) == ""


def test_after_shutdown_nothing_is_traced(telemetry: Telemetry) -> None:
    telemetry.shutdown()
    with span("move"):
        assert current_trace_id() == ""


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
