"""A move's durable form is read back as the same value, whatever it holds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.placement.move_facts import entry_from_row, facts_to_json
from services.placement.phases import Goal, MovePhase
from services.placement.records import MoveEntry
from services.placement.values import Failure, PushFigures, SlotName, Ticket
from tests.unit.placement.makers import entry
from worldline.verdict import RejectReason, Verdict

text = st.text(max_size=20)
whole = st.integers(0, 2**63 - 1)
digest = st.integers(0, 2**64 - 1)
number = st.floats(0, 1e12)
failures = st.none() | st.builds(Failure, text, text, text, text, st.none() | whole, text)
slots = st.none() | st.builds(SlotName, st.just("n"), whole, st.integers(1, 2**63 - 1))
figures = st.none() | st.builds(
    PushFigures,
    whole,
    whole,
    whole,
    whole,
    number,
    number,
    st.integers(0, 2),
    st.lists(text, max_size=3).map(tuple),
)
tickets = st.none() | st.builds(Ticket, text, whole, whole, number, number, number)
verdicts = st.none() | st.one_of(
    st.builds(Verdict.admit, text, st.dictionaries(text, number, max_size=3)),
    st.builds(
        Verdict.reject,
        st.sampled_from(RejectReason),
        text,
        st.dictionaries(text, number, max_size=3),
        whole,
    ),
)


@st.composite
def entries(draw: st.DrawFn) -> MoveEntry:
    move = replace(
        entry().move,
        phase=draw(st.sampled_from(MovePhase)),
        goal=draw(st.sampled_from(Goal)),
        tier_dropped=draw(st.booleans()),
        lost=draw(st.booleans()),
        unequal=draw(failures),
        failure=draw(failures),
        verdict=draw(verdicts),
        source_slot=draw(slots),
        target_slot=draw(slots),
        figures=draw(figures),
        ticket=draw(tickets),
        reservation_id=draw(text),
        block_index=draw(whole),
        source_digest=draw(digest),
        target_digest=draw(digest),
        story=draw(st.lists(text, max_size=3).map(tuple)),
    )
    timings = draw(st.lists(st.tuples(text, number), max_size=3).map(tuple))
    return MoveEntry(move=move, timings=timings, frozen_ms=draw(number))


@given(entries())
def test_round_trip(made: MoveEntry) -> None:
    move = made.move
    row = {
        "move_id": move.move_id,
        "session_id": move.session_id,
        "source_epoch": move.source_epoch,
        "phase": int(move.phase),
        "facts": facts_to_json(made),
        "trace_id": made.trace_id,
        "idempotency_key": None,
        "changed_unix_s": 0.0,
    }
    assert entry_from_row(row) == made
