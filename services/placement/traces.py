"""Trace store: the spans of recent moves, in SQLite, so that a trace needs nothing else running.

An OTLP/gRPC TraceService (opentelemetry.proto.collector.trace.v1) for the other services, and a
span exporter for this one. The file is a cache: losing it loses no move.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from worldline.rpc.server import GrpcServer
from worldline.v1 import placement_pb2

SERVICE_NAME = "opentelemetry.proto.collector.trace.v1.TraceService"

TRACES_MAX = 500
#: A move makes about twenty; a loop in some service must not fill the disk.
SPANS_PER_TRACE_MAX = 2_000

_STATUS = {
    Status.STATUS_CODE_OK: "ok",
    Status.STATUS_CODE_ERROR: "error",
    Status.STATUS_CODE_UNSET: "unset",
}

_SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS traces (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    trace_id TEXT NOT NULL UNIQUE,
    span_count INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS spans (
    trace_id TEXT NOT NULL REFERENCES traces (trace_id) ON DELETE CASCADE,
    span_id TEXT NOT NULL,
    parent_span_id TEXT NOT NULL,
    service TEXT NOT NULL,
    name TEXT NOT NULL,
    start_ns INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    attributes TEXT NOT NULL,
    events TEXT NOT NULL,
    links TEXT NOT NULL,
    PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """One span; `start_ns` is on the clock of the host that made it, for display only."""

    trace_id: str
    span_id: str
    parent_span_id: str
    service: str
    name: str
    start_ns: int
    duration_ns: int
    status: str
    attributes: dict[str, str]
    #: Name, time on that clock, attributes; and trace id, span id, attributes.
    events: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    links: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


class TraceStore:
    """Keeps the newest `traces_max` traces; safe to call from several threads."""

    def __init__(
        self,
        path: str,
        *,
        traces_max: int = TRACES_MAX,
        spans_per_trace_max: int = SPANS_PER_TRACE_MAX,
    ) -> None:
        self._traces_max = traces_max
        self._spans_per_trace_max = spans_per_trace_max
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        # A cache: an fsync per batch would cost the disk that the directory's commits need.
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._make_tables()
        self._closed = False

    def _make_tables(self) -> None:
        """A file of another version is made anew: what it holds is a cache."""
        if self._db.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_VERSION:
            self._db.executescript("DROP TABLE IF EXISTS spans; DROP TABLE IF EXISTS traces;")
        self._db.executescript(f"{_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION};")

    def close(self) -> None:
        """Close the file; later batches are refused."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.close()

    def add(self, request: ExportTraceServiceRequest) -> int:
        """Keep the request's spans; returns how many were refused as malformed or beyond bounds."""
        refused, parsed = 0, []
        for service, raw in _each_span(request):
            one = _parse(service, raw)
            if one is None:
                refused += 1
            else:
                parsed.append(one)
        with self._lock:
            if self._closed:
                return refused + len(parsed)
            self._db.execute("BEGIN IMMEDIATE")
            try:
                kept = sum(self._insert(one) for one in parsed)
                self._drop_oldest()
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
        return refused + len(parsed) - kept

    def spans(self, trace_id: str) -> list[StoredSpan]:
        """The trace's spans by start time; empty when unknown or dropped."""
        with self._lock:
            if self._closed:
                return []
            rows = self._db.execute(
                "SELECT trace_id, span_id, parent_span_id, service, name, start_ns, duration_ns,"
                " status, attributes, events, links FROM spans"
                " WHERE trace_id = ? ORDER BY start_ns, span_id",
                (trace_id,),
            ).fetchall()
        return [_from_row(row) for row in rows]

    def response(self, trace_id: str) -> placement_pb2.GetTraceResponse:
        """The trace as GetTrace answers it; offsets from its earliest span."""
        found = self.spans(trace_id)
        first_ns = min((one.start_ns for one in found), default=0)
        return placement_pb2.GetTraceResponse(
            trace_id=trace_id, spans=[_to_proto(one, first_ns) for one in found]
        )

    def exporter(self) -> SpanExporter:
        """An exporter for placement's own spans: straight in, no call to itself."""
        return _DirectExporter(self)

    def _insert(self, one: StoredSpan) -> int:
        """1 when the span is kept, 0 when its trace is full. A span sent twice is kept once."""
        self._db.execute(
            "INSERT OR IGNORE INTO traces (trace_id) VALUES (?)",
            (one.trace_id,),
        )
        room = self._db.execute(
            "UPDATE traces SET span_count = span_count + 1 WHERE trace_id = ? AND span_count < ?",
            (one.trace_id, self._spans_per_trace_max),
        ).rowcount
        if not room:
            return 0
        self._db.execute(
            "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                one.trace_id,
                one.span_id,
                one.parent_span_id,
                one.service,
                one.name,
                one.start_ns,
                one.duration_ns,
                one.status,
                json.dumps(one.attributes),
                json.dumps(one.events),
                json.dumps(one.links),
            ),
        )
        return 1

    def _drop_oldest(self) -> None:
        self._db.execute(
            "DELETE FROM traces WHERE sequence <= (SELECT MAX(sequence) FROM traces) - ?",
            (self._traces_max,),
        )


class TraceServicer(TraceServiceServicer):
    """OTLP's TraceService over a store. Opens no span itself, or every export would make more."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    async def Export(  # noqa: N802 - gRPC's name
        self, request: ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> ExportTraceServiceResponse:
        """Keep a batch; spans that were refused are counted in the partial success."""
        refused = await asyncio.to_thread(self._store.add, request)
        if not refused:
            return ExportTraceServiceResponse()
        return ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(
                rejected_spans=refused, error_message="malformed, or the trace is full"
            )
        )

    def add_to(self, server: GrpcServer) -> None:
        """Serve on placement's own port."""
        server.add(add_TraceServiceServicer_to_server, self, SERVICE_NAME)


class _DirectExporter(SpanExporter):
    def __init__(self, store: TraceStore) -> None:
        self._store = store

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        refused = self._store.add(encode_spans(spans))
        return SpanExportResult.FAILURE if refused else SpanExportResult.SUCCESS


def _from_row(row: sqlite3.Row) -> StoredSpan:
    texts = {name: json.loads(row[name]) for name in ("attributes", "events", "links")}
    return StoredSpan(**{**dict(row), **texts})


def _each_span(request: ExportTraceServiceRequest) -> Iterator[tuple[str, Span]]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes).get("service.name", "unknown")
        for scope in resource.scope_spans:
            for raw in scope.spans:
                yield service.removeprefix("worldline-"), raw


def _parse(service: str, raw: Span) -> StoredSpan | None:
    """None for ids of another length and for spans that end before they start (OTLP, 1.5)."""
    end_ns, start_ns = raw.end_time_unix_nano, raw.start_time_unix_nano
    ids_valid = len(raw.trace_id) == 16 and len(raw.span_id) == 8
    # SQLite's integers are signed.
    if not ids_valid or end_ns < start_ns or end_ns >= 1 << 63:
        return None
    return StoredSpan(
        trace_id=raw.trace_id.hex(),
        span_id=raw.span_id.hex(),
        parent_span_id=raw.parent_span_id.hex(),
        service=service,
        name=raw.name,
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        status=_STATUS.get(raw.status.code, "unset"),
        attributes=_attributes(raw.attributes) | _status_message(raw.status),
        events=[
            (each.name, each.time_unix_nano, _attributes(each.attributes))
            for each in sorted(raw.events, key=lambda each: each.time_unix_nano)
        ],
        links=[
            (each.trace_id.hex(), each.span_id.hex(), _attributes(each.attributes))
            for each in raw.links
        ],
    )


def _status_message(status: Status) -> dict[str, str]:
    return {"error": status.message} if status.message else {}


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key.removeprefix("worldline."): _text(pair.value) for pair in pairs}


def _text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind is None:
        return ""
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return str(getattr(value, kind)).strip()


def _to_proto(one: StoredSpan, first_ns: int) -> placement_pb2.GetTraceResponse.Span:
    return placement_pb2.GetTraceResponse.Span(
        span_id=one.span_id,
        parent_span_id=one.parent_span_id,
        service=one.service,
        name=one.name,
        start_offset_ms=(one.start_ns - first_ns) / 1e6,
        duration_ms=one.duration_ns / 1e6,
        status=one.status,
        attributes=one.attributes,
        events=[
            placement_pb2.GetTraceResponse.Event(
                name=name, offset_ms=(at_ns - first_ns) / 1e6, attributes=attributes
            )
            for name, at_ns, attributes in one.events
        ],
        links=[
            placement_pb2.GetTraceResponse.Link(
                trace_id=trace_id, span_id=span_id, attributes=attributes
            )
            for trace_id, span_id, attributes in one.links
        ],
    )
