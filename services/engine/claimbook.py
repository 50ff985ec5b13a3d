"""Claim book: the claims of all sessions, made anew only where something has happened.

The schedule is asked after every quantum, and between two of them something happens to one session
or two. What the others claim does not depend on the time, but for time that is kept for an action
to come: until its release, or a little longer than its client is silent.

Asked in the loop's thread and in the worker's, never in both at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

from services.engine.claims import Standing, claim_of
from services.engine.core import World
from services.engine.expected import Expected
from services.engine.schedule import Claim, Guard
from services.engine.session import Session


class _Facts(NamedTuple):
    """All of a session that can change, and no views of the slot.

    Each is read once, as it is at one moment: the event loop may change the next one meanwhile.
    Compared by identity first: cheap.
    """

    world: World
    expected: Expected
    quanta_left: int
    begun_at: float
    boundary_by: float
    played: bool
    room: bool
    held: bool
    gives: bool


class _Entry(NamedTuple):
    """A claim, what it was made from, and how long it holds."""

    facts: _Facts | None
    claim: Claim | None
    until: float


_NOTHING = _Entry(None, None, -math.inf)


class ClaimBook:
    """Keeps claims by session, for as long as the session is there."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._entries: WeakKeyDictionary[Session, _Entry] = WeakKeyDictionary()

    def claim(
        self, session: Session, expected: Expected, now: float, *, gives: bool = False
    ) -> Claim | None:
        """What the session claims now, see `claim_of`; `gives` as in `Standing`."""
        facts = _facts(session, expected, gives)
        entry = self._entries.get(session, _NOTHING)
        if now > entry.until or facts != entry.facts:
            claim = claim_of(facts.world, _standing(session, facts), now, self._guard)
            to_come = claim is not None and claim.prospective and not facts.world.pending
            entry = _Entry(facts, claim, claim.release_at if claim and to_come else math.inf)
            self._entries[session] = entry
        return entry.claim


def _facts(session: Session, expected: Expected, gives: bool) -> _Facts:
    flight = session.flight
    return _Facts(
        session.world,
        expected,
        0 if flight is None else flight.quanta_left,
        0.0 if flight is None else flight.begun_at,
        session.boundary_by,
        session.stream is not None,
        session.room,
        session.held > 0,
        gives,
    )


def _standing(session: Session, facts: _Facts) -> Standing:
    return Standing(
        contract=session.contract,
        model=session.model,
        ladder=session.ladder,
        expected=facts.expected,
        quanta_left=facts.quanta_left,
        begun_at=facts.begun_at,
        boundary_by=facts.boundary_by,
        played=facts.played,
        room=facts.room,
        held=facts.held,
        gives=facts.gives,
    )
