"""Candidate: a claim without a class, as the generation loop makes them today.

Earliest deadline first among the runnable (Liu and Layland 1973; paper, section 5), asked again
after every quantum: a world with a nearer deadline overtakes at the next yield. Equal deadlines
go by arrival, then by session id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.engine.core import World


@dataclass(frozen=True)
class Candidate:
    """A world that has work, as the schedule sees it; all times on one monotonic clock."""

    session_id: str
    release_at: float
    deadline_at: float
    arrived_at: float


def candidate_of(world: World, begun_at: float, room: bool, held: bool) -> Candidate | None:
    """The world's claim on the next quantum, or None where it has none.

    A world in the middle of a block always has one: nothing waits for anything but its boundary.
    Between blocks it needs an action, `room` in its outbox and nobody who `held` it for reading.
    `begun_at` is when the action of the block in flight arrived.
    """
    relative_s = world.period_s if world.period_s > 0 else world.horizon_s
    if world.mid_block:
        deadline_at = world.release_at + relative_s
        return Candidate(world.session_id, world.release_at, deadline_at, begun_at)
    if world.phase != "running" or not world.pending or not room or held:
        return None
    return Candidate(
        world.session_id,
        world.release_at,
        world.release_at + relative_s,
        world.pending[0].arrived_at,
    )


def pick(candidates: Iterable[Candidate], now: float) -> Candidate | None:
    """The released candidate with the earliest deadline."""
    released = [candidate for candidate in candidates if candidate.release_at <= now]
    return min(
        released,
        key=lambda candidate: (candidate.deadline_at, candidate.arrived_at, candidate.session_id),
        default=None,
    )


def next_release(candidates: Iterable[Candidate], now: float) -> float | None:
    """When the next candidate that is not released yet will be; None when there is none."""
    return min(
        (candidate.release_at for candidate in candidates if candidate.release_at > now),
        default=None,
    )
