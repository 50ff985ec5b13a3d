"""Stamped: a model that notes when each of its passes begins and ends, in the worker's thread."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field

from bench.decisions.parts import Moment, moment
from services.engine.model.causal import CausalWorld
from services.engine.world import Action, Frames, StateTree


@dataclass(slots=True)
class Stamps:
    """When passes began and ended, in the order in which the worker's thread ran them."""

    begun: list[Moment] = field(default_factory=list)
    ended: list[Moment] = field(default_factory=list)
    #: Of each pass, whether it was the first of its block.
    opening: list[bool] = field(default_factory=list)

    def clear(self) -> None:
        """Forget them."""
        self.begun.clear()
        self.ended.clear()
        self.opening.clear()

    def passes_ns(self) -> list[int]:
        """What each pass took on the wall."""
        pairs = zip(self.begun, self.ended, strict=True)
        return [end.wall_ns - begin.wall_ns for begin, end in pairs]

    def gaps_ns(self) -> list[int]:
        """From the end of each pass to the beginning of the next, on the wall."""
        pairs = zip(self.ended, self.begun[1:], strict=False)
        return [after.wall_ns - end.wall_ns for end, after in pairs]

    def block_gaps_ns(self) -> list[int]:
        """The same of those in which one block ended and another began."""
        pairs = zip(self.gaps_ns(), self.opening[1:], strict=False)
        return [gap_ns for gap_ns, opening in pairs if opening]

    def span_ns(self) -> int:
        """From the beginning of the first pass to the end of the last: passes and gaps."""
        return self.ended[-1].wall_ns - self.begun[0].wall_ns

    def gaps_cpu_ns(self) -> list[int]:
        """What the worker's thread itself spent in each gap."""
        pairs = zip(self.ended, self.begun[1:], strict=False)
        return [after.cpu_ns - end.cpu_ns for end, after in pairs]


class StampedWorld:
    """A `WorldModel`: the world that it wraps, with stamps around each pass."""

    def __init__(self, world: CausalWorld, stamps: Stamps) -> None:
        self._world = world
        self._stamps = stamps
        self.preset = world.preset
        self.quanta_per_block = world.quanta_per_block
        self.denoising_steps = world.denoising_steps

    def warm(self) -> None:
        """See `WorldModel.warm`."""
        self._world.warm()

    def state_spec(self) -> StateTree:
        """See `WorldModel.state_spec`."""
        return self._world.state_spec()

    def initialise(self, state: StateTree, seed: int) -> None:
        """See `WorldModel.initialise`."""
        self._world.initialise(state, seed)

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        """See `WorldModel.block`."""
        run = self._world.block(state, action, steps)
        opening = True
        while True:
            self._stamps.opening.append(opening)
            opening = False
            self._stamps.begun.append(moment())
            try:
                next(run)
            except StopIteration as finished:
                self._stamps.ended.append(moment())
                frames: Frames = finished.value
                return frames
            self._stamps.ended.append(moment())
            yield


def busy_ns() -> int:
    """The processor's time of the thread that asks."""
    return time.thread_time_ns()
