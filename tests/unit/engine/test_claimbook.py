"""The claim book: what it remembers is what would be claimed anew, whatever happened."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine import events as ev
from services.engine.claimbook import ClaimBook
from services.engine.core import Phase, World
from services.engine.expected import Expected
from services.engine.flight import Flight
from services.engine.quality import Quality
from services.engine.session import Session, Stream
from services.engine.world import NO_FRAMES, Action
from tests.unit.engine.support import contract_of
from tests.unit.engine.test_claims import EVEN, GUARD, MODEL, idle
from worldline.v1 import move_pb2

PACED = contract_of(period_ms=500.0, quality_floor_steps=1)


def a_session(anchor_at: float | None = 10.0) -> Session:
    session = Session(idle(PACED, anchor_at=anchor_at), PACED, MODEL, move_pb2.SlotRef())
    session.stream = Stream(0, digests_wanted=False)
    return session


def begin(session: Session, now: float) -> None:
    session.apply(ev.Dispatched(), now)
    run = (NO_FRAMES for _ in ())
    session.flight = Flight(run, Quality(3, 3), quanta=4, begun_at=now)  # type: ignore[arg-type]


def happen(session: Session, what: str, now: float) -> None:
    """One thing that changes what a session claims, where it can happen."""
    world, flight = session.world, session.flight
    if what == "act" and len(world.pending) < 2:
        session.apply(ev.ActionArrived(Action(world.next_action_index)), now)
    elif what == "begin" and world.phase is Phase.RUNNING and world.pending:
        begin(session, now)
    elif what == "quantum" and flight is not None:
        flight.quanta_done += 1
    elif what == "done" and flight is not None:
        session.flight = None
        session.apply(ev.BlockDone(), now)
    elif what == "press":
        session.press(now)
    elif what == "hold":
        session.held = 1 - session.held
    elif what == "stream":
        session.stream = None if session.stream else Stream(0, digests_wanted=False)


WHAT = st.sampled_from(["act", "begin", "quantum", "done", "press", "hold", "stream", "wait"])


@given(st.lists(st.tuples(WHAT, st.sampled_from([0.0, 0.01, 0.2, 0.6, 3.0])), max_size=30))
def test_remembered_or_made_anew_a_claim_is_the_same(steps: list[tuple[str, float]]) -> None:
    session, book, now = a_session(), ClaimBook(GUARD), 10.0
    for what, wait in steps:
        now += wait
        happen(session, what, now)
        seen, anew = book.claim(session, EVEN, now), ClaimBook(GUARD).claim(session, EVEN, now)
        if anew is None and seen is not None:
            # Kept for a client that has just fallen silent, until the release and no longer.
            assert seen.prospective
            assert seen.release_at >= now
        else:
            assert seen == anew


@pytest.mark.parametrize("what", ["act", "press", "hold", "stream"])
def test_nothing_is_made_anew_while_nothing_happens(what: str) -> None:
    session, book = a_session(), ClaimBook(GUARD)
    happen(session, what, 10.0)
    once = book.claim(session, EVEN, 10.1)
    assert book.claim(session, EVEN, 10.2) is once


def test_another_row_is_another_claim() -> None:
    session, book = a_session(), ClaimBook(GUARD)
    happen(session, "act", 10.0)
    slow = Expected(0.2, 0.2)
    claims = [book.claim(session, expected, 10.1) for expected in (EVEN, slow)]
    assert [claim.quantum_s for claim in claims if claim] == [0.1, 0.2]


def test_time_is_kept_for_the_next_release_when_one_has_passed() -> None:
    session, book = a_session(), ClaimBook(GUARD)
    claims = [book.claim(session, EVEN, now) for now in (10.1, 10.5, 10.6, 99.0)]
    assert [claim and claim.release_at for claim in claims] == [10.5, 10.5, 11.0, None]


def test_a_session_that_has_gone_is_forgotten() -> None:
    book = ClaimBook(GUARD)
    book.claim(a_session(), EVEN, 10.0)
    gc.collect()
    assert len(book._entries) == 0


def test_a_world_that_came_back_is_looked_at_again() -> None:
    session, book = a_session(), ClaimBook(GUARD)
    happen(session, "act", 10.0)
    assert book.claim(session, EVEN, 10.1) is not None
    session.world = replace(session.world, phase=Phase.FROZEN)
    assert book.claim(session, EVEN, 10.1) is None


class Unsteady(Session):
    """Its world is another one each time that somebody looks."""

    worlds: tuple[World, ...] = ()

    @property  # type: ignore[override]
    def world(self) -> World:
        first, *rest = self.worlds
        self.worlds = (*rest, first)
        return first

    @world.setter
    def world(self, world: World) -> None:
        self.worlds = (world,)


def test_a_claim_is_of_what_was_seen_when_it_was_made() -> None:
    """The event loop may change a session while the worker's thread asks."""
    acting = a_session()
    happen(acting, "act", 10.0)
    session, book = Unsteady(a_session().world, PACED, MODEL, move_pb2.SlotRef()), ClaimBook(GUARD)
    session.worlds = (session.world, acting.world)
    for one in session.worlds * 2:
        alone = a_session()
        alone.world, alone.stream = one, session.stream
        assert book.claim(session, EVEN, 10.1) == ClaimBook(GUARD).claim(alone, EVEN, 10.1)
