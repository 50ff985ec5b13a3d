"""Origins: where sessions were opened, so many and no more."""

from __future__ import annotations

from services.placement.origins import Origins


def test_a_session_has_the_span_that_it_was_opened_in() -> None:
    origins = Origins()
    origins.note("session-1", "00-a-b-01")
    assert origins.of("session-1") == "00-a-b-01"
    assert origins.of("session-2") == ""
    origins.forget("session-1")
    origins.forget("session-1")
    assert origins.of("session-1") == ""


def test_without_a_trace_nothing_is_kept() -> None:
    origins = Origins(1)
    origins.note("session-1", "00-a-b-01")
    origins.note("session-2", "")
    assert origins.of("session-1") == "00-a-b-01"


def test_the_oldest_goes() -> None:
    origins = Origins(2)
    for number in range(4):
        origins.note(f"session-{number}", f"00-{number}-b-01")
    assert [bool(origins.of(f"session-{number}")) for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]
