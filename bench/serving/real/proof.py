"""Proof: all arms on all rungs of one engine, trial by trial and in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.serving.real.arms import ARMS, in_turn
from bench.serving.real.engine import Engine, Workload
from bench.serving.real.outcome import Outcome, Trials
from bench.serving.real.rung import Rung, rungs
from services.engine.device import describe_device, fix_numerics
from services.engine.generation import GUARD
from services.engine.model.factory import build_world
from services.engine.worker import Worker
from services.engine.world import WorldModel
from worldline.errors import InvalidInput

#: Blocks that the rows are of before a period is chosen: enough for a 95th percentile.
MEASURED_BLOCKS = 32

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for; the periods follow from what is measured."""

    preset: str
    device: str
    threads: int
    floor_steps: int
    #: Periods of a trial, and blocks of the bulk job.
    periods: int
    bulk_blocks: int
    seeds: Sequence[int]


async def proof(plan: Plan, say: Say) -> list[tuple[Rung, list[Trials]]]:
    """Each rung with a row for each arm.

    Raises:
        InvalidInput: a preset, a device or a floor that there is not.
        Unavailable: the device does not work here.
    """
    device = describe_device(plan.device)
    fix_numerics(device)
    worker = Worker(plan.threads, device)
    try:
        model = build_world(plan.preset, 0, device.torch_device)
        floor_quanta = _floor_quanta(model, plan.floor_steps)
        engine = Engine(model, worker)
        expected = await engine.measured(MEASURED_BLOCKS)
        found = rungs(expected, model.quanta_per_block, floor_quanta, GUARD)
        say(_announced(found, plan))
        return [(rung, await _rung(engine, rung, plan, say)) for rung in found]
    finally:
        worker.close()


def _announced(found: Sequence[Rung], plan: Plan) -> str:
    """The periods, and how long all trials will take."""
    periods = ", ".join(f"{rung.name} {rung.period_s * 1e3:.1f} ms" for rung in found)
    trials = plan.periods * len(ARMS) * len(plan.seeds)
    took_s = trials * sum(rung.period_s for rung in found)
    return f"periods: {periods}; about {took_s:.0f} s of trials"


def _floor_quanta(model: WorldModel, floor_steps: int) -> int:
    """Of a block at the floor.

    Raises:
        InvalidInput: it leaves no step out.
    """
    full_steps = model.denoising_steps
    if not 1 <= floor_steps < full_steps:
        raise InvalidInput(
            f"floor is {floor_steps}: {model.preset} has {full_steps} steps, so that the quality "
            f"knob has something to leave out from 1 to {full_steps - 1}",
            field="floor",
        )
    return model.quanta_per_block - (full_steps - floor_steps)


async def _rung(engine: Engine, rung: Rung, plan: Plan, say: Say) -> list[Trials]:
    load = Workload(rung.period_s, plan.floor_steps, plan.periods, plan.bulk_blocks)
    outcomes: dict[str, list[Outcome]] = {arm.name: [] for arm in ARMS}
    for number, seed in enumerate(plan.seeds):
        for arm in in_turn(number):
            say(f"{rung.name}, trial {number + 1} of {len(plan.seeds)}: {arm.name}")
            outcomes[arm.name].append(await engine.trial(arm, load, seed))
    return [Trials(arm, tuple(each)) for arm, each in outcomes.items()]
