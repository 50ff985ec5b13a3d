"""Choice: which claim gets the next quantum.

Asked again after every quantum; nothing is ever taken back in the middle of one. The classes:

- **Hard** (C1, and whoever a freeze or a close waits for in mid-block): earliest deadline first.
- **Soft** (C2a, C2b, C4, C5): earliest deadline first, and before a hard claim with a later
  deadline too, where the quantum fits the headroom. C2b waits at its wave's barrier; of C4 only
  the replay that was asked for first takes part, so that replays run in an order that no measured
  time decides.
- **Bulk** (C3, and the engine's own work in C5, which has no deadline): in order of arrival, block
  by block, where no other claim can run and the quantum fits the headroom.

Who starves, and why: bulk and soft claims while the headroom is below their quantum, so C3 under
full C1 load, by contract; soft claims then too, which admission prevents and this cannot. A world
in mid-block that somebody waits for does not: it is hard, and due when they want it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from services.engine.schedule.claim import Claim, Demand
from services.engine.schedule.guard import Guard, least_slack_s
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


class Chooser(Protocol):
    """What the engine's loop asks between two quanta: `pick`, or a bench's other rule.

    A block in flight that is the only claim must be chosen: the engine goes on with it unasked.
    """

    def __call__(
        self,
        claims: Iterable[Claim],
        now: float,
        *,
        guard: Guard = ...,
        floors: Mapping[str, int] = ...,
    ) -> Choice | Idle:
        """Who gets the next quantum."""


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
    ready = _sorted_out(claims, now, floors)
    hard = min(ready.hard, key=_rank, default=None)
    if hard is not None and all(hard.rank <= soft.rank for soft in ready.soft):
        return Choice(hard, Band.HARD)
    if hard is None and not ready.soft and not ready.bulk:
        return Idle(ready.until, ready.why_idle)
    headroom_s = least_slack_s(ready.demands, now, guard)
    soft = _first_that_fits(ready.soft, guard, headroom_s)
    if soft is not None and (hard is None or soft.rank < hard.rank):
        return Choice(soft, Band.SOFT, headroom_s)
    if hard is not None:
        return Choice(hard, Band.HARD, headroom_s)
    bulk = _first_that_fits(ready.bulk, guard, headroom_s)
    if bulk is not None:
        return Choice(bulk, Band.BULK, headroom_s)
    return Idle(ready.until, Wait.GUARDED, headroom_s)


def keeps(
    session_id: str,
    claims: Iterable[Claim],
    now: float,
    *,
    guard: Guard = _GUARD,
    floors: Mapping[str, int] = _NO_WAVES,
) -> bool:
    """Whether `pick` gives that session the next quantum, and by order alone.

    False also where it is for headroom to say: that wants the latest measured times.
    """
    choice = pick(claims, now, guard=guard, floors=floors)
    if isinstance(choice, Idle) or choice.session_id != session_id:
        return False
    return choice.headroom_s == math.inf


@dataclass(slots=True)
class _Ready:
    """Claims by class, those that can run now."""

    hard: list[Claim] = field(default_factory=list)
    soft: list[Claim] = field(default_factory=list)
    bulk: list[Claim] = field(default_factory=list)
    #: Of all hard claims, released or not.
    demands: list[Demand] = field(default_factory=list)
    until: float = math.inf
    why_idle: Wait = Wait.NO_WORK


def _sorted_out(claims: Iterable[Claim], now: float, floors: Mapping[str, int]) -> _Ready:
    """The loop that runs over every session between any two quanta."""
    ready = _Ready()
    replays: list[Claim] = []
    for claim in claims:
        hard = claim.hard
        if hard:
            ready.demands.append(claim.demand)
        if claim.release_at > now:
            ready.until = min(ready.until, claim.release_at)
            if ready.why_idle is Wait.NO_WORK:
                ready.why_idle = Wait.NOT_RELEASED
        elif claim.prospective:
            continue
        elif claim.wave_id and _barred(claim, floors):
            ready.why_idle = Wait.BARRIER
        elif hard:
            ready.hard.append(claim)
        elif claim.service_class is ServiceClass.C3_BULK or _is_chore(claim):
            ready.bulk.append(claim)
        elif claim.service_class is ServiceClass.C4_REPLAY:
            replays.append(claim)
        else:
            ready.soft.append(claim)
    if replays:
        ready.soft.append(min(replays, key=_asked_first))
    return ready


def _first_that_fits(claims: list[Claim], guard: Guard, headroom_s: float) -> Claim | None:
    fitting = [claim for claim in claims if guard.allows(claim.quantum_s, headroom_s)]
    return min(fitting, key=_rank, default=None)


def _barred(claim: Claim, floors: Mapping[str, int]) -> bool:
    if claim.mid_block:
        return False
    return claim.block_index > floors.get(claim.wave_id, claim.block_index)


def _is_chore(claim: Claim) -> bool:
    """A world in C5 is due within its horizon; what the engine does for itself never is."""
    return claim.service_class is ServiceClass.C5_MAINTENANCE and claim.deadline_at == math.inf


def _rank(claim: Claim) -> tuple[float, float, str]:
    return claim.rank


def _asked_first(claim: Claim) -> tuple[float, str]:
    return claim.arrived_at, claim.session_id
