"""Worldline: the engine's own code decides; here is only what the engine's shell would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.serving.session import Session
from services.engine.schedule.choice import Idle, pick
from services.engine.schedule.claim import Claim
from services.engine.schedule.guard import Guard, slack_s
from services.engine.schedule.ladder import Ladder, Steps, choose_steps
from worldline.contract import ServiceClass

_GUARD = Guard()


@dataclass(frozen=True, slots=True)
class Worldline:
    """The schedule with its rules, each of which can be left out.

    `quality_knob` off is the arm without a ladder: full quality always, nothing else changed.
    `give_to_bulk`: while bulk waits, interactive blocks get their floor.
    """

    quality_knob: bool = True
    give_to_bulk: bool = False
    guarded: bool = True
    guard: Guard = _GUARD

    def next(self, sessions: Sequence[Session], now: float) -> Session | float:
        """As the engine's loop asks."""
        claims = self._claims(sessions, now)
        if not self.guarded:
            claims = [claim for claim in claims if claim.release_at <= now]
        choice = pick(claims, now, guard=self.guard)
        if isinstance(choice, Idle):
            releases = [each.release.release_at for each in sessions if each.wants_more]
            return min((at for at in releases if at > now), default=float("inf"))
        return next(each for each in sessions if each.terms.session_id == choice.session_id)

    def steps(self, session: Session, sessions: Sequence[Session], now: float) -> Steps:
        """The ladder; bulk has no deadline and so its full number of steps."""
        claims = self._claims(sessions, now)
        itself = next(each for each in claims if each.session_id == session.terms.session_id)
        return choose_steps(
            self._ladder(session),
            slack_s(itself, claims, now, self.guard),
            session.quantum_s,
            guard=self.guard,
            history=session.history,
            give_to_bulk=itself.hard and self._gives(sessions, now),
        )

    def _gives(self, sessions: Sequence[Session], now: float) -> bool:
        return self.give_to_bulk and any(_is_waiting_bulk(each, now) for each in sessions)

    def _ladder(self, session: Session) -> Ladder:
        ladder = session.terms.ladder
        if self.quality_knob:
            return ladder
        return Ladder(ladder.full_steps, ladder.full_steps, ladder.context_quanta)

    def _claims(self, sessions: Sequence[Session], now: float) -> list[Claim]:
        gives = self._gives(sessions, now)
        return [self._claim(each, gives) for each in sessions if each.wants_more]

    def _claim(self, session: Session, gives: bool) -> Claim:
        terms, release = session.terms, session.release
        return Claim(
            terms.session_id,
            terms.service_class,
            release.release_at,
            release.deadline_at,
            session.asked_at,
            mid_block=session.mid_block,
            quantum_s=session.quantum_s,
            left_s=self._quanta_left(session, gives) * session.quantum_s,
            period_s=terms.period_s,
            block_s=self._block_quanta(session, gives) * session.quantum_s,
            block_index=session.block_index,
        )

    def _quanta_left(self, session: Session, gives: bool) -> int:
        return session.quanta_left if session.mid_block else self._block_quanta(session, gives)

    def _block_quanta(self, session: Session, gives: bool) -> int:
        ladder = self._ladder(session)
        if gives and session.history.may_degrade:
            return ladder.quanta(ladder.floor_steps)
        kept = ladder.kept_steps(session.terms.period_s, session.quantum_s, self.guard)
        return ladder.quanta(kept)


def _is_waiting_bulk(session: Session, now: float) -> bool:
    bulk = session.terms.service_class is ServiceClass.C3_BULK
    return bulk and session.wants_more and session.release.release_at <= now
