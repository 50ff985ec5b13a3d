"""Trace figure: the waterfall of one move as an SVG, the same text for the same trace."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from worldline.cli.svg import INK, TEXT_SIZE, clean, line, mark, number, rectangle, text
from worldline.cli.trace_tree import event_facts, facts, in_order, spoken_events
from worldline.sdk import Trace, TraceEvent, TraceSpan

#: Of Paul Tol's bright scheme, which people who see few colours can tell apart.
_COLOURS = {
    "placement": "#4477aa",
    "admission": "#aa3377",
    "mover": "#228833",
    "engine": "#cc7a00",
}
_OTHER_COLOUR = "#777777"
_FAILED_COLOUR = "#c4161c"
_FAINT, _LINE, _STRIPE = "#656d76", "#d8dee4", "#f6f8fa"
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
#: Widths of sans-serif text, in parts of its size: an average of what traces say.
_CHARACTER_EM = 0.56

_WIDTH = 1_200.0
_MARGIN = 20.0
_NAMES_LEFT, _NAMES_WIDTH = _MARGIN, 270.0
_AXIS_LEFT, _AXIS_RIGHT = 310.0, _WIDTH - 290.0
_HEAD = 78.0
_ROW = 22.0
_BAR = 12.0
_BAR_MIN = 2.0
_INDENT = 14.0
_SMALL = 11.0
_TICKS_MAX = 9
#: Events that are spelled out below the bars, and in so many lines each; others are marks only.
_NOTES_MAX = 16
_NOTE_LINES_MAX = 5
_NOTE_LINE = 16.0
_NOTE_LEFT = _MARGIN + 100.0


def draw_trace(found: Trace, title: str) -> str:
    """The SVG's text. Bars by service on one axis in milliseconds; failed spans outlined in red;
    events as marks on their bar, and in words below.
    """
    rows = list(in_order(found.spans))
    total_ms = max((one.start_offset_ms + one.duration_ms for _, one in rows), default=0.0)
    scale = _Scale(total_ms)
    notes = _notes([one for _, one in rows])
    bottom = _HEAD + _ROW * len(rows)
    height = bottom + _notes_height(notes) + _MARGIN
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {number(_WIDTH)} {number(height)}",
            "width": number(_WIDTH),
            "height": number(height),
            "font-family": _FONT,
            "font-size": number(TEXT_SIZE),
            "role": "img",
        },
    )
    ElementTree.SubElement(svg, "title").text = clean(title)
    rectangle(svg, 0, 0, _WIDTH, height, fill="#ffffff")
    _draw_head(svg, found, title, total_ms, [one.service for _, one in rows])
    for index in range(len(rows)):
        top = _HEAD + _ROW * index
        if index % 2 == 0:
            rectangle(svg, 0, top, _WIDTH, _ROW, fill=_STRIPE)
    _draw_axis(svg, scale, bottom)
    for index, (depth, one) in enumerate(rows):
        _draw_row(svg, scale, _HEAD + _ROW * index, depth, one)
    _draw_notes(svg, notes, bottom + 28.0)
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


class _Scale:
    """Milliseconds to the figure's own units."""

    def __init__(self, total_ms: float) -> None:
        self._total_ms = total_ms if total_ms > 0 else 1.0

    def at(self, offset_ms: float) -> float:
        """Where that moment is; what lies outside is at the axis' end."""
        share = min(1.0, max(0.0, offset_ms / self._total_ms))
        return _AXIS_LEFT + share * (_AXIS_RIGHT - _AXIS_LEFT)

    def ticks_ms(self) -> list[float]:
        """Round moments, 1, 2 or 5 of a decade apart."""
        rough = self._total_ms / _TICKS_MAX
        decade = 10.0 ** math.floor(math.log10(rough))
        step = next(part * decade for part in (1, 2, 5, 10) if part * decade >= rough)
        return [number * step for number in range(int(self._total_ms / step) + 1)]


def _draw_head(
    svg: ElementTree.Element, found: Trace, title: str, total_ms: float, services: Sequence[str]
) -> None:
    named = sorted(set(services))
    left = _WIDTH - _MARGIN - sum(_legend_width(each) for each in named)
    text(svg, _MARGIN, 24, _fitted(title, left - 2 * _MARGIN, 16), size=16, weight="600")
    told = f"trace {found.trace_id} · {len(found.spans)} spans · {_milliseconds(total_ms)}"
    text(svg, _MARGIN, 42, told, size=_SMALL, fill=_FAINT)
    for service in named:
        rectangle(svg, left, 15, 10, 10, fill=_colour(service), rx=2)
        text(svg, left + 15, 24, service, size=_SMALL)
        left += _legend_width(service)


def _legend_width(service: str) -> float:
    return 15 + _width(service, _SMALL) + 18


def _draw_axis(svg: ElementTree.Element, scale: _Scale, bottom: float) -> None:
    for tick_ms in scale.ticks_ms():
        x = scale.at(tick_ms)
        line(svg, x, _HEAD - 6, x, bottom, stroke=_LINE)
        text(svg, x, _HEAD - 12, _tick(tick_ms), size=_SMALL, fill=_FAINT, anchor="middle")
    text(svg, _AXIS_RIGHT + 30, _HEAD - 12, "ms", size=_SMALL, fill=_FAINT)
    line(svg, _AXIS_LEFT, _HEAD - 6, _AXIS_RIGHT, _HEAD - 6, stroke=_FAINT)


def _draw_row(
    svg: ElementTree.Element, scale: _Scale, top: float, depth: int, one: TraceSpan
) -> None:
    row = ElementTree.SubElement(svg, "g")
    ElementTree.SubElement(row, "title").text = clean(_told(one))
    failed = one.status == "error"
    left = _NAMES_LEFT + _INDENT * depth
    name = _fitted(one.name, _NAMES_LEFT + _NAMES_WIDTH - left, TEXT_SIZE)
    baseline = top + _ROW / 2 + TEXT_SIZE * 0.36
    text(row, left, baseline, name, fill=_FAILED_COLOUR if failed else INK)
    start = scale.at(one.start_offset_ms)
    end = max(start + _BAR_MIN, scale.at(one.start_offset_ms + one.duration_ms))
    outline = {"stroke": _FAILED_COLOUR, "stroke-width": "2"} if failed else {}
    bar_top = top + (_ROW - _BAR) / 2
    rectangle(row, start, bar_top, end - start, _BAR, fill=_colour(one.service), rx=2, more=outline)
    for event in one.events:
        mark(row, scale.at(event.offset_ms), top + _ROW / 2)
    reach = max([end] + [scale.at(event.offset_ms) + 5.0 for event in one.events])
    said = " · ".join(filter(None, (_milliseconds(one.duration_ms), facts(one))))
    _draw_label(row, start, reach, baseline, said, failed=failed)


def _draw_label(
    row: ElementTree.Element, start: float, end: float, baseline: float, said: str, *, failed: bool
) -> None:
    """Right of the bar where it fits, else left of it, else cut short on the roomier side."""
    right, left = _WIDTH - _MARGIN - end - 6, start - _AXIS_LEFT - 6
    fill = _FAILED_COLOUR if failed else _FAINT
    width = _width(said, _SMALL)
    if width <= right or right >= left:
        text(row, end + 6, baseline, _fitted(said, right, _SMALL), size=_SMALL, fill=fill)
        return
    said = _fitted(said, left, _SMALL)
    text(row, start - 6, baseline, said, size=_SMALL, fill=fill, anchor="end")


def _notes_height(notes: Sequence[_Note]) -> float:
    further = sum(len(each.lines) - 1 for each in notes)
    return 34.0 + _ROW * len(notes) + _NOTE_LINE * further if notes else 0.0


@dataclass(frozen=True, slots=True)
class _Note:
    """One event in words, in as many lines as they take."""

    at_ms: float
    service: str
    said: str
    lines: tuple[str, ...]


def _notes(spans: Sequence[TraceSpan]) -> list[_Note]:
    """Events by time, as many as are spelled out."""
    return [_note(one, event) for one, event in spoken_events(spans)[:_NOTES_MAX]]


def _note(one: TraceSpan, event: TraceEvent) -> _Note:
    said = f"{one.name} {event.name}: {event_facts(event.attributes)}".removesuffix(": ")
    width = int((_WIDTH - _MARGIN - _NOTE_LEFT) / (TEXT_SIZE * _CHARACTER_EM))
    lines = textwrap.wrap(said, width, max_lines=_NOTE_LINES_MAX, placeholder=" …") or [said]
    return _Note(event.offset_ms, one.service, said, tuple(lines))


def _draw_notes(svg: ElementTree.Element, notes: Sequence[_Note], top: float) -> None:
    if not notes:
        return
    text(svg, _MARGIN, top, "Events", weight="600")
    baseline = top
    for each in notes:
        baseline += _ROW
        note = ElementTree.SubElement(svg, "g")
        ElementTree.SubElement(note, "title").text = clean(each.said)
        mark(note, _MARGIN + 5, baseline - TEXT_SIZE * 0.36)
        at = _milliseconds(each.at_ms)
        text(note, _NOTE_LEFT - 12, baseline, at, size=_SMALL, fill=_FAINT, anchor="end")
        for index, said in enumerate(each.lines):
            baseline += _NOTE_LINE if index else 0.0
            text(note, _NOTE_LEFT, baseline, said, fill=_colour(each.service))


def _told(one: TraceSpan) -> str:
    """All of a span, for whoever points at it."""
    lines = [f"{one.service} {one.name}", f"from {_milliseconds(one.start_offset_ms)}"]
    lines.append(f"for {_milliseconds(one.duration_ms)}, {one.status}")
    lines += [f"{name} {value}" for name, value in sorted(one.attributes.items())]
    lines += [f"see trace {link.trace_id}, span {link.span_id}" for link in one.links]
    return "\n".join(lines)


def _colour(service: str) -> str:
    return _COLOURS.get(service, _OTHER_COLOUR)


def _milliseconds(duration_ms: float) -> str:
    return f"{duration_ms:.0f} ms" if duration_ms >= 100 else f"{duration_ms:.1f} ms"


def _tick(tick_ms: float) -> str:
    return f"{tick_ms:.6g}"


def _width(said: str, size: float) -> float:
    return len(said) * size * _CHARACTER_EM


def _fitted(said: str, width: float, size: float) -> str:
    """Cut to the width, with an ellipsis; empty where not even that fits."""
    room = int(width / (size * _CHARACTER_EM))
    if len(said) <= room:
        return said
    return said[: room - 1].rstrip(" ,·") + "…" if room > 1 else ""
