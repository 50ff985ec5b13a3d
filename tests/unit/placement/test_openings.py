"""Openings: what nobody sees to is found, and nothing that somebody does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.placement.openings import Openings
from services.placement.records import SessionRecord, SessionState
from tests.unit.placement.makers import session

OPENING = session(state=SessionState.OPENING, slot=None)
OTHER = replace(OPENING, session_id="other")


def test_an_opening_in_nobodys_hand_is_found_at_the_second_look() -> None:
    openings = Openings()
    assert openings.forsaken((OPENING, OTHER)) == ()
    assert openings.forsaken((OPENING, OTHER)) == (OPENING, OTHER)


def test_one_that_ended_since_it_was_read_is_not_found() -> None:
    """The record was read before the task wrote that it lives, and looked at after."""
    openings = Openings()
    with openings.in_hand((OPENING.session_id,)):
        read = (OPENING,)
    assert openings.forsaken(read) == ()
    assert openings.forsaken((replace(OPENING, state=SessionState.LIVE),)) == ()


def test_what_somebody_sees_to_is_not_found_however_long_it_takes() -> None:
    openings = Openings()
    with openings.in_hand((OPENING.session_id, OTHER.session_id)):
        for _ in range(3):
            assert openings.forsaken((OPENING, OTHER)) == ()
    assert openings.forsaken((OPENING, OTHER)) == ()
    assert openings.forsaken((OPENING,)) == (OPENING,)


def test_who_undoes_it_has_it_in_hand_as_who_opened_it_had() -> None:
    openings = Openings()
    with openings.in_hand((OPENING.session_id,)):
        with openings.in_hand((OPENING.session_id,)):
            pass
        openings.forsaken((OPENING,))
        assert openings.forsaken((OPENING,)) == ()


def test_taken_in_hand_between_two_looks_it_counts_anew() -> None:
    openings = Openings()
    assert openings.forsaken((OPENING,)) == ()
    with openings.in_hand((OPENING.session_id,)):
        assert openings.forsaken((OPENING,)) == ()
    assert openings.forsaken((OPENING,)) == ()
    assert openings.forsaken((OPENING,)) == (OPENING,)


def test_who_fails_lets_go() -> None:
    openings = Openings()
    with pytest.raises(ZeroDivisionError), openings.in_hand((OPENING.session_id,)):
        raise ZeroDivisionError
    openings.forsaken((OPENING,))
    assert openings.forsaken((OPENING,)) == (OPENING,)


@pytest.mark.parametrize("state", [one for one in SessionState if one is not SessionState.OPENING])
def test_only_openings_are(state: SessionState) -> None:
    openings = Openings()
    one: SessionRecord = replace(OPENING, state=state)
    openings.forsaken((one,))
    assert openings.forsaken((one,)) == ()
