"""Cost: what one decision takes, by how many sessions the engine has.

A decision is what the engine does between two quanta: a claim for every session, the choice, and
at a block's first quantum its number of steps. A world is simulated in none of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bench.fabric.streams import stream
from services.engine.schedule.choice import Idle, pick
from services.engine.schedule.claim import Claim
from services.engine.schedule.guard import Guard, slack_s
from services.engine.schedule.ladder import Ladder, choose_steps
from worldline.contract import ServiceClass

SESSIONS = (1, 5, 20, 50)
#: What the whole serving layer may add to a quantum (paper, section 5).
BUDGET_US = 200.0

_LADDER = Ladder(3, 2)
_GUARD = Guard()
_QUANTUM_S = 0.0016
_PERIOD_S = 0.4


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one decision."""

    sessions: int
    decisions: int
    median_us: float
    p99_us: float
    #: By the thread's processor time: where others use the machine, the wall counts their turns.
    cpu_median_us: float
    cpu_p99_us: float

    @property
    def met(self) -> bool:
        """Whether the median leaves room within the serving layer's budget."""
        return self.median_us <= BUDGET_US

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {**asdict(self), "met": self.met}


def costs(decisions: int, seed: int) -> list[Cost]:
    """A row for each number of sessions."""
    return [_cost(sessions, decisions, seed) for sessions in SESSIONS]


def table(rows: list[Cost]) -> str:
    """One under another."""
    lines = [f"{'SESSIONS':>8}  {'MEDIAN us':>9}  {'p99':>7}  {'CPU MEDIAN':>10}  {'p99':>7}"]
    lines += [
        f"{row.sessions:>8}  {row.median_us:>9.1f}  {row.p99_us:>7.1f}  "
        f"{row.cpu_median_us:>10.1f}  {row.cpu_p99_us:>7.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def _cost(sessions: int, decisions: int, seed: int) -> Cost:
    decide = _decider(sessions, seed)
    wall_us, cpu_us = [], []
    for number in range(decisions):
        now = number * _QUANTUM_S
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        decide(now)
        cpu_us.append((time.thread_time_ns() - began_cpu_ns) / 1e3)
        wall_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return Cost(sessions, decisions, *_median_and_p99(wall_us), *_median_and_p99(cpu_us))


def _median_and_p99(values: list[float]) -> tuple[float, float]:
    return statistics.median(values), sorted(values)[int(0.99 * (len(values) - 1))]


def _decider(sessions: int, seed: int) -> Callable[[float], None]:
    """Two thirds are interactive and spread over their period; the rest is of the other classes."""
    drawn = stream(seed, f"{sessions} sessions")
    others = [kind for kind in ServiceClass if kind is not ServiceClass.C1_INTERACTIVE]
    phases = [drawn.uniform(0, _PERIOD_S) for _ in range(sessions)]
    kinds = [
        others[number % len(others)] if number % 3 == 2 else ServiceClass.C1_INTERACTIVE
        for number in range(sessions)
    ]
    names = [f"session-{number}" for number in range(sessions)]

    def claim(number: int, now: float) -> Claim:
        phase, kind = phases[number], kinds[number]
        release_at = phase + int(now / _PERIOD_S) * _PERIOD_S
        bulk = kind is ServiceClass.C3_BULK
        return Claim(
            session_id=names[number],
            service_class=kind,
            release_at=release_at,
            deadline_at=float("inf") if bulk else release_at + _PERIOD_S,
            arrived_at=release_at,
            quantum_s=_QUANTUM_S,
            left_s=4 * _QUANTUM_S,
            period_s=0.0 if bulk else _PERIOD_S,
            block_s=4 * _QUANTUM_S,
        )

    def decide(now: float) -> None:
        claims = [claim(number, now) for number in range(sessions)]
        choice = pick(claims, now, guard=_GUARD)
        if not isinstance(choice, Idle):
            slack = slack_s(choice.claim, claims, now, _GUARD)
            choose_steps(_LADDER, slack, _QUANTUM_S, guard=_GUARD)

    return decide
