"""Residents: how many sessions with one period an engine keeps, and how many it would admit.

Each number of sessions plays for itself on one real engine, until one is too many: a session that
misses more of its blocks than are allowed, or skips a release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench.serving.real.engine import Engine
from bench.serving.real.outcome import Seen
from services.engine.device import describe_device, fix_numerics
from services.engine.model.factory import build_world
from services.engine.worker import Worker
from services.engine.world import WorldModel
from worldline.admissibility.device_profile import DeviceProfile
from worldline.admissibility.profile_row import ProfileRow
from worldline.admissibility.sessions import SessionDemand, SessionFit
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvariantBroken
from worldline.fields import BYTES_MAX

#: Blocks that the row is of: 128 quanta of the kind that a block has three of, and more.
MEASURED_BLOCKS = 48

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """Sessions of `preset` on `device`, all with the same period, each for `periods` of them."""

    preset: str
    device: str
    threads: int
    period_ms: float
    periods: int
    sessions_most: int
    missed_most: float
    guard_band: float

    @property
    def contract(self) -> Contract:
        """At full quality: nothing may be degraded."""
        return Contract(
            ServiceClass.C1_INTERACTIVE,
            horizon_ms=max(1_000.0, 2 * self.period_ms),
            period_ms=self.period_ms,
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of one number of sessions; counts of all of them together."""

    sessions: int
    #: Admission's answer for the last of them, from the measured row, and the share that it saw.
    admitted: bool
    utilization_wanted: float
    blocks: int
    missed: int
    skipped: int
    #: The largest share of its blocks that one session missed.
    missed_share_worst: float
    late_ms_worst: float

    def within(self, missed_most: float) -> bool:
        """Whether every session kept its period."""
        return self.skipped == 0 and self.missed_share_worst <= missed_most


@dataclass(frozen=True, slots=True)
class Answer:
    """The row that all of it follows from, and each number of sessions that was tried."""

    row: ProfileRow
    tried: tuple[Kept, ...]

    def to_json(self) -> dict[str, object]:
        """For machines."""
        step, closing = self.row.step, self.row.closing
        return {
            "step": None if step is None else asdict(step),
            "closing": asdict(closing),
            "block_ms": self.row.charge.block_ms(self.row.denoising_steps),
            "tried": [asdict(one) for one in self.tried],
        }


async def residents(question: Question, say: Say) -> Answer:
    """One session, two, three, until some number is one too many.

    Raises:
        InvalidInput: a preset or a device that there is not.
        Unavailable: the device does not work here.
    """
    device = describe_device(question.device)
    fix_numerics(device)
    worker = Worker(question.threads, device)
    try:
        model: WorldModel = await worker.run(
            lambda: build_world(question.preset, 0, device.torch_device)
        )
        engine = Engine(model, worker)
        await engine.measured(MEASURED_BLOCKS)
        (row,) = engine.profiles.rows(0.0)
        tried: list[Kept] = []
        for count in range(1, question.sessions_most + 1):
            seen = await engine.together(count, question.contract, question.periods)
            tried.append(kept(seen, _fit(row, question, count, engine.state_bytes)))
            say(_line(tried[-1]))
            if not tried[-1].within(question.missed_most):
                break
        return Answer(row, tuple(tried))
    finally:
        worker.close()


def kept(seen: Sequence[Sequence[Seen]], fit: SessionFit) -> Kept:
    """Count what the clients of sessions that played side by side saw."""
    if not all(seen):
        raise InvariantBroken("a session showed no block in all its periods")
    late = [[block.late_ms for block in one if block.late_ms > 0] for one in seen]
    return Kept(
        sessions=len(seen),
        admitted=fit.reason is None,
        utilization_wanted=fit.utilization_wanted,
        blocks=sum(map(len, seen)),
        missed=sum(map(len, late)),
        skipped=sum(block.releases_skipped for one in seen for block in one),
        missed_share_worst=max(
            len(missed) / len(one) for missed, one in zip(late, seen, strict=True)
        ),
        late_ms_worst=max((max(missed) for missed in late if missed), default=0.0),
    )


def table(answer: Answer, question: Question) -> str:
    """For people."""
    row = answer.row
    step = "" if row.step is None else f"quantum {row.step.p50_ms:.2f} ms ({row.step.p95_ms:.2f}), "
    heading = (
        f"{row.shape.name} on {row.device}: {step}last of a block {row.closing.p50_ms:.2f} ms "
        f"({row.closing.p95_ms:.2f}), block {row.charge.block_ms(row.denoising_steps):.1f} ms; "
        f"period {question.period_ms:g} ms"
    )
    return "\n".join((heading, *(_line(one) for one in answer.tried)))


def _fit(row: ProfileRow, question: Question, count: int, state_bytes: int) -> SessionFit:
    """Whether admission would take the last of so many, memory left aside."""
    demand = SessionDemand(row.shape.name, state_bytes, question.contract)
    device = DeviceProfile(BYTES_MAX, question.guard_band, {row.shape.name: row.charge})
    return SessionFit(demand, (demand,) * (count - 1), device)


def _line(one: Kept) -> str:
    return (
        f"{one.sessions} session{'s' * (one.sessions > 1)}: {one.blocks} blocks, {one.missed} "
        f"missed (worst {100 * one.missed_share_worst:.1f} %, {one.late_ms_worst:.1f} ms), "
        f"{one.skipped} skipped; admission {'takes' if one.admitted else 'refuses'} the last "
        f"({one.utilization_wanted:.2f} of the period)"
    )
