"""The trace's figure: well-formed whatever the spans say, and true to their times."""

from __future__ import annotations

import io
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from worldline.cli import traces
from worldline.cli.trace_svg import _AXIS_LEFT, _AXIS_RIGHT, _Scale, draw_trace
from worldline.cli.trace_tree import event_facts, facts
from worldline.sdk import Trace, TraceEvent, TraceLink, TraceSpan

_SVG = "{http://www.w3.org/2000/svg}"


def one_span(span_id: str, parent: str = "", **fields: object) -> TraceSpan:
    values: dict[str, object] = {
        "service": "mover",
        "name": span_id,
        "start_offset_ms": 0.0,
        "duration_ms": 10.0,
        "status": "unset",
        "attributes": {},
        **fields,
    }
    return TraceSpan(span_id=span_id, parent_span_id=parent, **values)  # type: ignore[arg-type]


def rejected() -> Trace:
    event = TraceEvent(
        "rejected",
        90.0,
        {"reason": "SAVES_TOO_LITTLE", "move_ms": "93.60000001", "explanation": "it costs more"},
    )
    root = one_span(
        "move",
        service="placement",
        duration_ms=100.0,
        status="error",
        attributes={"error": "rejected: SAVES_TOO_LITTLE"},
        events=(event,),
        links=(TraceLink("t2", "s2", {}),),
    )
    asked = one_span("admission.admit", "move", service="admission", start_offset_ms=50.0)
    return Trace("0123abcd", (root, asked))


def drawn(found: Trace, title: str = "move-1") -> ElementTree.Element:
    return ElementTree.fromstring(draw_trace(found, title))  # noqa: S314 - our own text


def texts(svg: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in svg.iter(f"{_SVG}text")]


def bars(svg: ElementTree.Element) -> list[ElementTree.Element]:
    """By row: the one rectangle in each row's group."""
    return [bar for group in svg.iter(f"{_SVG}g") for bar in group.findall(f"{_SVG}rect")]


def test_a_figure_says_who_did_what_when_and_why_not() -> None:
    svg = drawn(rejected())
    said = texts(svg)
    assert "move-1" in said
    assert "trace 0123abcd · 2 spans · 100 ms" in said
    assert {"placement", "admission", "move", "admission.admit", "ms"} <= set(said)
    assert "100 ms · error rejected: SAVES_TOO_LITTLE" in said
    (note,) = [one for one in said if one.startswith("move rejected:")]
    assert note == (
        "move rejected: reason SAVES_TOO_LITTLE, explanation it costs more, move_ms 93.6"
    )


def test_bars_are_where_their_times_are() -> None:
    move, asked = bars(drawn(rejected()))
    assert float(move.attrib["x"]) == _AXIS_LEFT
    assert float(move.attrib["width"]) == pytest.approx(_AXIS_RIGHT - _AXIS_LEFT)
    assert float(asked.attrib["x"]) == pytest.approx((_AXIS_LEFT + _AXIS_RIGHT) / 2)
    assert float(asked.attrib["width"]) == pytest.approx((_AXIS_RIGHT - _AXIS_LEFT) / 10)


def test_services_have_colours_and_failures_an_outline() -> None:
    move, asked = bars(drawn(rejected()))
    assert move.attrib["fill"] != asked.attrib["fill"]
    assert "stroke" in move.attrib
    assert "stroke" not in asked.attrib


def test_the_same_trace_gives_the_same_text() -> None:
    assert draw_trace(rejected(), "m") == draw_trace(rejected(), "m")
    backwards = Trace("0123abcd", tuple(reversed(rejected().spans)))
    assert draw_trace(backwards, "m") == draw_trace(rejected(), "m")


def test_the_terminal_says_why_not_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(traces, "console", Console(file=stream, width=160))
    traces.print_waterfall(rejected())
    assert stream.getvalue().splitlines()[-1] == (
        "at 90.0 ms move rejected: reason SAVES_TOO_LITTLE, explanation it costs more, move_ms 93.6"
    )


def test_what_went_well_is_a_mark_and_no_note() -> None:
    event = TraceEvent("admitted", 5.0, {"reason": "admitted"})
    svg = drawn(Trace("t", (one_span("admit", events=(event,)),)))
    assert len(list(svg.iter(f"{_SVG}polygon"))) == 1
    assert "Events" not in texts(svg)


def test_a_trace_without_a_duration_is_drawn() -> None:
    svg = drawn(Trace("t", (one_span("move", duration_ms=0.0),)))
    (bar,) = bars(svg)
    assert float(bar.attrib["width"]) > 0


_texts = st.text(max_size=80)
_offsets = st.floats(0, 1e7)
_spans = st.lists(
    st.builds(
        TraceSpan,
        span_id=st.sampled_from("abcdef"),
        parent_span_id=st.sampled_from(["", "a", "b", "x"]),
        service=_texts,
        name=_texts,
        start_offset_ms=_offsets,
        duration_ms=_offsets,
        status=st.sampled_from(["ok", "error", "unset"]),
        attributes=st.dictionaries(st.sampled_from(["bytes", "error", "odd"]), _texts),
        events=st.lists(
            st.builds(TraceEvent, _texts, _offsets, st.dictionaries(_texts, _texts)), max_size=3
        ).map(tuple),
        links=st.lists(st.builds(TraceLink, _texts, _texts, st.just({})), max_size=2).map(tuple),
    ),
    max_size=6,
    # Spans of one id cannot be: the store keeps one.
    unique_by=lambda each: each.span_id,
).map(tuple)


@given(_spans, _texts)
def test_any_spans_give_a_document_with_every_bar_on_the_axis(
    spans: tuple[TraceSpan, ...], title: str
) -> None:
    svg = drawn(Trace("t", spans), title)
    height = float(svg.attrib["height"])
    for bar in bars(svg):
        left, width = float(bar.attrib["x"]), float(bar.attrib["width"])
        assert _AXIS_LEFT <= left <= left + width <= _AXIS_RIGHT + 2.01
        assert float(bar.attrib["y"]) < height


@given(st.floats(1e-3, 1e9))
def test_ticks_are_round_few_and_on_the_axis(total_ms: float) -> None:
    ticks = _Scale(total_ms).ticks_ms()
    assert 1 <= len(ticks) <= 11
    assert ticks[0] == 0
    assert ticks[-1] <= total_ms * (1 + 1e-9)
    steps = {round((later - one) / (ticks[1] - ticks[0]), 6) for one, later in pairwise(ticks)}
    assert steps <= {1.0}


def test_facts_say_a_reason_once() -> None:
    refused = one_span("admit", attributes={"verdict": "TARGET_FULL", "error": "TARGET_FULL"})
    assert facts(refused) == "error TARGET_FULL"
    pushed = one_span("push", attributes={"bytes": "1670124960", "chunks": "400"})
    assert facts(pushed) == "1.67 GB, chunks 400"


def test_numbers_of_an_event_are_as_people_read_them() -> None:
    shown = event_facts(
        {
            "rate_bytes_per_s": "1684000000.0",
            "reason": "RECEIVER_BUSY",
            "moves_into_receiver": "1.0",
            "exception.stacktrace": "Traceback",
        }
    )
    assert shown == ("reason RECEIVER_BUSY, moves_into_receiver 1, rate_bytes_per_s 1.684e+09")
