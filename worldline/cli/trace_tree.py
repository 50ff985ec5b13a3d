"""Trace tree: the spans of a trace in the order in which people read them, and their facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from worldline.cli.output import human_bytes
from worldline.sdk import TraceEvent, TraceSpan

_SHOWN_ATTRIBUTES = ("error", "bytes", "chunks", "rate_bytes_per_s", "verdict", "epoch")
#: Of what went as it should, the mark says enough.
_UNSPOKEN = frozenset({"admitted"})
#: An event's words, in the order in which they are read; its numbers come after.
_WORDS = ("reason", "exception.type", "message", "exception.message", "explanation")
_NOT_SHOWN = frozenset({"exception.stacktrace", "exception.escaped"})
#: Digits of an event's numbers; what is whole and not larger than this is shown whole.
_DIGITS = 4
_WHOLE_MAX = 1e6


def in_order(spans: tuple[TraceSpan, ...]) -> Iterator[tuple[int, TraceSpan]]:
    """Depth first, children by start; a span whose parent is not there counts as a root."""
    known = {span.span_id for span in spans}
    children: dict[str, list[TraceSpan]] = {}
    for span in sorted(spans, key=lambda each: (each.start_offset_ms, each.span_id)):
        parent = span.parent_span_id if span.parent_span_id in known else ""
        children.setdefault(parent, []).append(span)
    stack = [(0, span) for span in reversed(children.get("", []))]
    while stack:
        depth, span = stack.pop()
        yield depth, span
        stack.extend((depth + 1, child) for child in reversed(children.get(span.span_id, [])))


def facts(span: TraceSpan) -> str:
    """What is worth a place beside a span's bar."""
    shown = {name: span.attributes[name] for name in _SHOWN_ATTRIBUTES if name in span.attributes}
    if shown.get("verdict") == shown.get("error"):
        shown.pop("verdict", None)  # said once
    return ", ".join(_fact(name, value) for name, value in shown.items())


def _fact(name: str, value: str) -> str:
    """Bytes and rates as people read them; the rest as it is."""
    try:
        if name == "bytes":
            return human_bytes(float(value))
        if name == "rate_bytes_per_s":
            return f"{human_bytes(float(value))}/s"
    except ValueError:
        pass
    return f"{name} {value}"


def spoken_events(spans: Iterable[TraceSpan]) -> list[tuple[TraceSpan, TraceEvent]]:
    """The events that are worth words, by time."""
    found = [(one, event) for one in spans for event in one.events if event.name not in _UNSPOKEN]
    return sorted(found, key=lambda pair: (pair[1].offset_ms, pair[0].span_id))


def event_facts(attributes: Mapping[str, str]) -> str:
    """An event's attributes in one line: why and in which words first, then its numbers."""
    return ", ".join(
        f"{name} {_short(attributes[name])}"
        for name in sorted(attributes, key=lambda each: (_place(each), each))
        if name not in _NOT_SHOWN
    )


def _place(name: str) -> int:
    return _WORDS.index(name) if name in _WORDS else len(_WORDS)


def _short(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        return " ".join(value.split())
    whole = number.is_integer() and abs(number) < _WHOLE_MAX
    return f"{number:.0f}" if whole else f"{number:.{_DIGITS}g}"
