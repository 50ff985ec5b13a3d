"""Drain attempts: what came of asking, and so when and where to ask for a session again. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from services.placement.drain_values import Resident, Seat, Why

#: After a move that was rolled back, twice as long with each.
BACKOFF_FIRST_MS = 1_000.0
BACKOFF_MAX_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class _Pause:
    until_s: float
    why: Why


class Attempts:
    """Rejects and failures of the sessions of a demand; `now` in monotonic seconds."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        #: Rejects that waiting cures and failures, by session and target; failures by session.
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[str] = Counter()
        #: Targets that will never do for a session, with why.
        self._never: defaultdict[str, dict[str, Why]] = defaultdict(dict)

    def rejected(self, session_id: str, target_node_id: str, why: Why, now: float) -> None:
        """The target was refused: for a while, or for good where waiting does not cure it."""
        if why.retry_after_ms <= 0:
            self._never[session_id][target_node_id] = why
            return
        self._refusals[session_id, target_node_id] += 1
        self._pauses[session_id] = _Pause(now + why.retry_after_ms / 1e3, why)

    def failed(self, session_id: str, target_node_id: str, why: Why, now: float) -> None:
        """The move was rolled back; the reason stands for later, whatever it said of a retry."""
        self._failures[session_id] += 1
        doubled_ms = BACKOFF_FIRST_MS * 2 ** min(self._failures[session_id] - 1, 16)
        again = replace(why, retry_after_ms=min(doubled_ms, BACKOFF_MAX_MS))
        self.rejected(session_id, target_node_id, again, now)

    def asked(self, session_id: str) -> None:
        """It is asked for again: its pause is over."""
        self._pauses.pop(session_id, None)

    def keep_only(self, session_ids: Collection[str]) -> None:
        """Forget everybody else."""
        for kept in (self._pauses, self._failures, self._never):
            for gone in kept.keys() - session_ids:
                del kept[gone]
        for key in [key for key in self._refusals if key[0] not in session_ids]:
            del self._refusals[key]

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """How often a target was refused to a session, for a while."""
        return self._refusals

    def seats(self, one: Resident) -> tuple[Seat, ...]:
        """The seats that are not refused for good."""
        never = self._never.get(one.session_id, {})
        return tuple(seat for seat in one.seats if seat.node_id not in never)

    def paused(self, now: float) -> set[str]:
        """Who is not to be asked for yet."""
        return {name for name, one in self._pauses.items() if now < one.until_s}

    def why(self, session_id: str, now: float) -> Why | None:
        """The last reject that waiting cures, with what is left of its wait."""
        pause = self._pauses.get(session_id)
        if pause is None:
            return None
        return replace(pause.why, retry_after_ms=max(0.0, (pause.until_s - now) * 1e3))

    def never(self, session_id: str) -> Why | None:
        """The last reject that waiting does not cure."""
        return next(reversed(self._never.get(session_id, {}).values()), None)

    def wake_s(self, now: float) -> float:
        """When the next pause is over; infinite without one."""
        ends = (one.until_s for one in self._pauses.values() if one.until_s > now)
        return min(ends, default=float("inf"))
