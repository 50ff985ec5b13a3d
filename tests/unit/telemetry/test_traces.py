from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from services.placement.traces import TraceServicer, TraceStore
from worldline.rpc.channel import open_channel
from worldline.rpc.server import GrpcServer
from worldline.sdk.records import trace_from_proto
from worldline.telemetry import span, start


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    opened = TraceStore(str(tmp_path / "traces.sqlite"), traces_max=3, spans_per_trace_max=4)
    yield opened
    opened.close()


def one_span(trace: int = 1, number: int = 1, **fields: object) -> Span:
    values: dict[str, object] = {
        "trace_id": trace.to_bytes(16, "big"),
        "span_id": number.to_bytes(8, "big"),
        "name": f"span-{number}",
        "start_time_unix_nano": 1_000_000 * number,
        "end_time_unix_nano": 1_000_000 * number + 500_000,
        **fields,
    }
    return Span(**values)  # type: ignore[arg-type]


def request(*spans: Span, service: str = "worldline-mover") -> ExportTraceServiceRequest:
    resource = Resource(
        attributes=[KeyValue(key="service.name", value=AnyValue(string_value=service))]
    )
    scoped = ScopeSpans(spans=spans)
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[scoped])]
    )


def trace_id(number: int) -> str:
    return number.to_bytes(16, "big").hex()


def test_keeps_what_it_is_given(store: TraceStore) -> None:
    attributes = [
        KeyValue(key="worldline.bytes", value=AnyValue(int_value=7)),
        KeyValue(key="worldline.equal", value=AnyValue(bool_value=False)),
        KeyValue(key="other", value=AnyValue(string_value="x")),
    ]
    status = Status(code=Status.STATUS_CODE_ERROR, message="peer gone")
    child = one_span(
        1, 2, parent_span_id=(1).to_bytes(8, "big"), attributes=attributes, status=status
    )
    assert store.add(request(child, one_span(1, 1))) == 0
    first, second = store.spans(trace_id(1))
    assert (first.name, second.name) == ("span-1", "span-2")
    assert second.parent_span_id == first.span_id
    assert second.service == "mover"
    assert second.status == "error"
    assert second.attributes == {
        "bytes": "7",
        "equal": "false",
        "other": "x",
        "error": "peer gone",
    }
    answer = store.response(trace_id(1))
    assert [one.start_offset_ms for one in answer.spans] == [0, 1]
    assert answer.spans[0].duration_ms == 0.5


def test_keeps_events_and_links(store: TraceStore) -> None:
    reason = KeyValue(key="worldline.reason", value=AnyValue(string_value="TARGET_FULL"))
    later = Span.Event(name="rejected", time_unix_nano=3_500_000, attributes=[reason])
    sooner = Span.Event(name="granted", time_unix_nano=1_250_000)
    link = Span.Link(trace_id=(7).to_bytes(16, "big"), span_id=(8).to_bytes(8, "big"))
    store.add(request(one_span(1, 1, events=[later, sooner], links=[link])))
    (answered,) = store.response(trace_id(1)).spans
    assert [(each.name, each.offset_ms) for each in answered.events] == [
        ("granted", 0.25),
        ("rejected", 2.5),
    ]
    assert answered.events[1].attributes == {"reason": "TARGET_FULL"}
    assert [(each.trace_id, each.span_id) for each in answered.links] == [
        (trace_id(7), f"{8:016x}")
    ]
    parsed = trace_from_proto(store.response(trace_id(1)))
    assert [each.name for each in parsed.spans[0].events] == ["granted", "rejected"]
    assert parsed.spans[0].links[0].trace_id == trace_id(7)


def test_a_file_of_an_earlier_version_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE spans (trace_id TEXT, name TEXT)")
    db.execute("CREATE TABLE traces (trace_id TEXT)")
    db.execute("INSERT INTO traces VALUES ('t')")
    db.commit()
    db.close()
    opened = TraceStore(str(path))
    assert opened.add(request(one_span())) == 0
    assert len(opened.spans(trace_id(1))) == 1
    opened.close()


def test_an_unknown_trace_is_empty(store: TraceStore) -> None:
    assert store.spans(trace_id(9)) == []
    assert len(store.response(trace_id(9)).spans) == 0


def test_the_oldest_trace_goes(store: TraceStore) -> None:
    for trace in range(1, 6):
        store.add(request(one_span(trace)))
    assert [bool(store.spans(trace_id(trace))) for trace in range(1, 6)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_trace_is_bounded(store: TraceStore) -> None:
    assert store.add(request(*(one_span(1, number) for number in range(1, 8)))) == 3
    assert len(store.spans(trace_id(1))) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"trace_id": b"short"},
        {"span_id": b""},
        {"end_time_unix_nano": 1},
        {"end_time_unix_nano": 2**64 - 1},
    ],
)
def test_malformed_spans_are_refused(store: TraceStore, fields: dict[str, object]) -> None:
    assert store.add(request(one_span(1, 1, **fields), one_span(1, 2))) == 1
    assert len(store.spans(trace_id(1))) == 1


@given(payload=st.binary(max_size=200))
def test_any_bytes_do_no_harm(payload: bytes) -> None:
    store = TraceStore(":memory:")
    span_message = one_span(1, 1, trace_id=payload[:20], span_id=payload[20:40])
    store.add(request(span_message, service=payload.hex()))
    store.close()


def test_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "traces.sqlite")
    first = TraceStore(path)
    first.add(request(one_span()))
    first.close()
    assert first.add(request(one_span())) == 1  # closed: refused, not raised
    second = TraceStore(path)
    assert len(second.spans(trace_id(1))) == 1
    second.close()


async def test_one_trace_over_grpc_from_two_processes_worth(store: TraceStore) -> None:
    """Spans travel by OTLP and directly, and end in one trace; exporting makes no spans."""
    server = GrpcServer()
    address = server.bind("127.0.0.1:0")
    TraceServicer(store).add_to(server)
    await server.start()
    remote = start("mover", address)
    with span("move") as root:
        with span("push"):
            pass
        found = root.trace_id
    assert await asyncio.to_thread(remote.flush)
    assert {one.name for one in store.spans(found)} == {"move", "push"}
    own = start("placement", span_exporters=[store.exporter()])
    with span("commit", parent=f"00-{found}-{'1' * 16}-01"):
        pass
    assert await asyncio.to_thread(own.flush)
    assert {(one.service, one.name) for one in store.spans(found)} == {
        ("mover", "move"),
        ("mover", "push"),
        ("placement", "commit"),
    }
    async with open_channel(address) as channel:
        stub = TraceServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.Export(request(one_span(1, 1, span_id=b"")), timeout=60)
        assert answer.partial_success.rejected_spans == 1
    for each in (remote, own):
        assert await asyncio.to_thread(each.shutdown)
    await server.stop(0)
