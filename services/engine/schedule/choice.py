"""Choice: which claim gets the next quantum.

Asked again after every quantum; nothing is ever taken back in the middle of one. The classes:

- **Hard** (C1, and whoever a freeze or a close waits for in mid-block): earliest deadline first.
- **Soft** (C2a, C2b, C4, C5): earliest deadline first, and before a hard claim with a later
  deadline too, where the quantum fits the headroom. C2b waits at its wave's barrier; of C4 only
  the replay that was asked for first takes part, so that replays run in an order that no measured
  time decides.
- **Bulk** (C3): in order of arrival, block by block, where no other claim can run and the quantum
  fits the headroom.

Who starves, and why: bulk and soft claims while the headroom is below their quantum, so C3 under
full C1 load, by contract; soft claims then too, which admission prevents and this cannot. A world
in mid-block that somebody waits for does not: it is hard, and due when they want it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from services.engine.schedule.claim import Claim
from services.engine.schedule.guard import Guard, headroom_s
from worldline.contract import ServiceClass

_NO_WAVES: Mapping[str, int] = MappingProxyType({})
_GUARD = Guard()


class Band(StrEnum):
    """What a claim was picked as."""

    HARD = "HARD"
    SOFT = "SOFT"
    BULK = "BULK"


class Wait(StrEnum):
    """Why nobody gets a quantum."""

    NO_WORK = "NO_WORK"
    NOT_RELEASED = "NOT_RELEASED"
    BARRIER = "BARRIER"
    GUARDED = "GUARDED"


@dataclass(frozen=True, slots=True)
class Choice:
    """The claim that gets the next quantum."""

    claim: Claim
    band: Band
    #: What was left for others before it, see `guard.headroom_s`; infinite where nobody asked.
    headroom_s: float = math.inf

    @property
    def session_id(self) -> str:
        """Whose it is."""
        return self.claim.session_id


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody may run now. Ask again at `until`, or when something happens."""

    #: The next release; infinite where none is known.
    until: float
    reason: Wait
    headroom_s: float = math.inf


def pick(
    claims: Iterable[Claim],
    now: float,
    *,
    guard: Guard = _GUARD,
    floors: Mapping[str, int] = _NO_WAVES,
) -> Choice | Idle:
    """Who gets the next quantum.

    `floors` is `wave.wave_floors` of all sessions here; without it no barrier holds.
    """
    ready = _Ready(claims, now, floors)
    if ready.hard is not None and not ready.soft:
        return Choice(ready.hard, Band.HARD)
    if ready.hard is None and not ready.soft and not ready.bulk:
        return Idle(ready.until, ready.why_idle)
    headroom = headroom_s(ready.reserving, now, guard)
    for claim in sorted(ready.soft, key=lambda claim: claim.rank):
        if ready.hard is not None and ready.hard.rank <= claim.rank:
            break
        if guard.allows(claim.quantum_s, headroom):
            return Choice(claim, Band.SOFT, headroom)
    if ready.hard is not None:
        return Choice(ready.hard, Band.HARD, headroom)
    for claim in sorted(ready.bulk, key=lambda claim: (claim.arrived_at, claim.session_id)):
        if guard.allows(claim.quantum_s, headroom):
            return Choice(claim, Band.BULK, headroom)
    return Idle(ready.until, Wait.GUARDED, headroom)


class _Ready:
    """Claims by class, those that can run now."""

    __slots__ = ("bulk", "hard", "reserving", "soft", "until", "why_idle")

    def __init__(self, claims: Iterable[Claim], now: float, floors: Mapping[str, int]) -> None:
        self.hard: Claim | None = None
        self.soft: list[Claim] = []
        self.bulk: list[Claim] = []
        #: All hard claims, released or not.
        self.reserving: list[Claim] = []
        self.until = math.inf
        self.why_idle = Wait.NO_WORK
        replay: Claim | None = None
        for claim in claims:
            if claim.hard:
                self.reserving.append(claim)
            if claim.prospective or claim.release_at > now:
                if claim.release_at > now:
                    self.until = min(self.until, claim.release_at)
                    self._idle(Wait.NOT_RELEASED)
            elif _barred(claim, floors):
                self._idle(Wait.BARRIER)
            elif claim.hard:
                if self.hard is None or claim.rank < self.hard.rank:
                    self.hard = claim
            elif claim.service_class is ServiceClass.C3_BULK:
                self.bulk.append(claim)
            elif claim.service_class is ServiceClass.C4_REPLAY:
                if replay is None or _asked_first(claim) < _asked_first(replay):
                    replay = claim
            else:
                self.soft.append(claim)
        if replay is not None:
            self.soft.append(replay)

    def _idle(self, why: Wait) -> None:
        """A barrier says more than a release that is to come."""
        if self.why_idle is not Wait.BARRIER:
            self.why_idle = why


def _barred(claim: Claim, floors: Mapping[str, int]) -> bool:
    if claim.mid_block or not claim.wave_id:
        return False
    return claim.block_index > floors.get(claim.wave_id, claim.block_index)


def _asked_first(claim: Claim) -> tuple[float, str]:
    return claim.arrived_at, claim.session_id
