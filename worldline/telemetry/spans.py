"""Span: one timed step of a move, in the trace that all parties share.

The tracer is this module's own, not OpenTelemetry's process-wide one: an application that holds a
`worldline.Client` keeps its own provider, and its spans become the parents of ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from worldline.errors import WorldlineError

#: What may be given as an attribute; None is left out.
Attribute = str | bool | int | float | bytes | Enum | None

_PREFIX = "worldline."
#: OTLP integers are signed; a digest or a generation may not fit.
_INT64_MAX = (1 << 63) - 1
_PROPAGATOR = TraceContextTextMapPropagator()


class _Current:
    """The tracer in use: the API's (a no-op unless the application set one) until `start`."""

    tracer: Tracer = trace.get_tracer("worldline")


def use_tracer(tracer: Tracer | None) -> None:
    """Make `tracer` the one that `span` uses; None goes back to the API's."""
    _Current.tracer = tracer if tracer is not None else trace.get_tracer("worldline")


class ActiveSpan:
    """The span that a `with span(...)` block runs in."""

    def __init__(self, inner: Span) -> None:
        self._inner = inner

    def set(self, **attributes: Attribute) -> None:
        """Add or replace attributes; each becomes `worldline.<name>`."""
        self._inner.set_attributes(_encode(attributes))

    def event(self, name: str, /, **attributes: Attribute) -> None:
        """Note that something happened at this moment."""
        self._inner.add_event(name, _encode(attributes))

    def link(self, traceparent: str, **attributes: Attribute) -> None:
        """Point to a span of another trace that this one has to do with; nothing where empty."""
        found = _span_context(traceparent)
        if found is not None:
            self._inner.add_link(found, _encode(attributes))

    def fail(self, reason: str) -> None:
        """Mark the span as failed without an exception, for outcomes such as a reject."""
        self._inner.set_status(Status(StatusCode.ERROR, reason))

    @property
    def trace_id(self) -> str:
        """32 hex digits; empty where nothing is traced."""
        return _trace_id(self._inner)

    @property
    def traceparent(self) -> str:
        """This span as a W3C traceparent; empty where nothing is traced."""
        return _traceparent(trace.set_span_in_context(self._inner, Context()))


@contextmanager
def span(
    name: str, *, parent: str = "", links: Iterable[str] = (), **attributes: Attribute
) -> Iterator[ActiveSpan]:
    """Run the block inside a span; its children are the spans that the block opens.

    `parent` is a W3C traceparent (see `current_traceparent`, `traceparent_in`) to hang the span
    under, for work that goes on in another task or after a restart; by default the current span is
    the parent. `links` are traceparents of spans in other traces that it has to do with.
    Whatever the block raises is recorded, cancellation too, and raised on.
    """
    above = _PROPAGATOR.extract({"traceparent": parent}) if parent else None
    inner = _start(name, above, links, attributes)
    token = otel_context.attach(trace.set_span_in_context(inner, above))
    try:
        with _ending(inner):
            yield ActiveSpan(inner)
    finally:
        otel_context.detach(token)


@contextmanager
def lasting_span(
    name: str, *, links: Iterable[str] = (), **attributes: Attribute
) -> Iterator[ActiveSpan]:
    """As `span`, for what goes on for long beside other work, like a client's stream.

    It is not made the current one: what happens meanwhile belongs to traces of its own, and a
    generator that is abandoned is closed in another context than the one that it began in.
    """
    inner = _start(name, None, links, attributes)
    with _ending(inner):
        yield ActiveSpan(inner)


def _start(
    name: str, above: Context | None, links: Iterable[str], attributes: dict[str, Attribute]
) -> Span:
    found = (_span_context(each) for each in links)
    return _Current.tracer.start_span(
        name,
        context=above,
        attributes=_encode(attributes),
        links=[Link(each) for each in found if each is not None],
    )


@contextmanager
def _ending(inner: Span) -> Iterator[None]:
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            inner.record_exception(error, _encode(_facts_of(error)))
        inner.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        raise
    finally:
        inner.end()


def _facts_of(error: Exception) -> dict[str, Attribute]:
    if not isinstance(error, WorldlineError):
        return {}
    return {
        "reason": error.reason,
        "field": error.field,
        "leaf": error.leaf,
        "granule": error.granule,
        "retry_after_ms": error.retry_after_ms,
    }


def current_span() -> ActiveSpan:
    """The span that is current here; one that keeps nothing where nothing is traced."""
    return ActiveSpan(trace.get_current_span())


def no_span() -> ActiveSpan:
    """One that keeps nothing."""
    return ActiveSpan(trace.INVALID_SPAN)


def current_trace_id() -> str:
    """Trace id of the current context, 32 hex digits; empty where nothing is traced."""
    return _trace_id(trace.get_current_span())


def current_traceparent() -> str:
    """The current span as a W3C traceparent (W3C Trace Context, section 3.2); empty if none."""
    return _traceparent(None)


def traceparent_in(trace_id: str) -> str:
    """A W3C traceparent that continues a trace whose root span went with its process.

    The parent it names was never sent: spans below it stand beside the others of the trace. Empty
    where `trace_id` is.
    """
    return f"00-{trace_id}-{secrets.token_hex(8)}-01" if trace_id else ""


def _traceparent(context: Context | None) -> str:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return carrier.get("traceparent", "")


def _span_context(traceparent: str) -> SpanContext | None:
    context = _PROPAGATOR.extract({"traceparent": traceparent}, context=Context())
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def _trace_id(inner: Span) -> str:
    found = inner.get_span_context()
    return trace.format_trace_id(found.trace_id) if found.is_valid else ""


def _encode(attributes: dict[str, Attribute]) -> dict[str, AttributeValue]:
    return {
        _PREFIX + name: _encode_one(value)
        for name, value in attributes.items()
        if value is not None
    }


def _encode_one(value: Attribute) -> AttributeValue:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _INT64_MAX:
        return str(value)
    if isinstance(value, str | bool | int | float):
        return value
    return str(value)
