"""Choosers: other rules for the next claim, asked by the engine's loop in place of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from services.engine.schedule import Band, Choice, Claim, Guard, Idle, Wait

_GUARD = Guard()
_NO_WAVES: Mapping[str, int] = MappingProxyType({})


class PinQueue:
    """One session has the device to itself; all others queue behind it.

    The paper's isolation baseline. What the pinned session leaves over is nobody's.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    def __call__(
        self,
        claims: Iterable[Claim],
        now: float,
        *,
        guard: Guard = _GUARD,
        floors: Mapping[str, int] = _NO_WAVES,
    ) -> Choice | Idle:
        """The pinned session's claim, once it is released."""
        pinned = [claim for claim in claims if claim.session_id == self._session_id]
        runnable = next((claim for claim in pinned if can_run(claim, now)), None)
        return _idle(pinned, now) if runnable is None else Choice(runnable, band(runnable))


class RoundRobin:
    """A quantum each in turn, blind to class and deadline: the paper's naive baseline."""

    def __init__(self) -> None:
        self._turns = 0
        #: The turn that each session had last.
        self._last: dict[str, int] = {}

    def __call__(
        self,
        claims: Iterable[Claim],
        now: float,
        *,
        guard: Guard = _GUARD,
        floors: Mapping[str, int] = _NO_WAVES,
    ) -> Choice | Idle:
        """The claim that can run whose session has waited longest for a turn."""
        claims = list(claims)
        runnable = [claim for claim in claims if can_run(claim, now)]
        if not runnable:
            return _idle(claims, now)
        chosen = min(runnable, key=lambda claim: self._last.get(claim.session_id, 0))
        self._turns += 1
        self._last[chosen.session_id] = self._turns
        return Choice(chosen, band(chosen))


def can_run(claim: Claim, now: float) -> bool:
    """Whether there is a block to go on with, or one that is released."""
    return not claim.prospective and (claim.mid_block or claim.release_at <= now)


def band(claim: Claim) -> Band:
    """What the claim is, whoever chose it."""
    return Band.HARD if claim.hard else Band.BULK


def _idle(claims: Iterable[Claim], now: float) -> Idle:
    releases = [claim.release_at for claim in claims if claim.release_at > now]
    if not releases:
        return Idle(math.inf, Wait.NO_WORK)
    return Idle(min(releases), Wait.NOT_RELEASED)
