"""Tiny worlds that do not repeat themselves, each for another reason."""

from __future__ import annotations

from collections.abc import Generator

import torch

from services.engine.model.causal import CausalWorld
from services.engine.model.config import TINY
from services.engine.model.weights import build_weights
from services.engine.world import Action, Frames, StateTree


class Tampered(CausalWorld):
    """The tiny world; subclasses write what they should not into a leaf of the state."""

    def __init__(self) -> None:
        super().__init__(build_weights(TINY, 0, torch.device("cpu")))
        self.blocks = 0
        self.scratch = torch.zeros(1)

    def disturb(self, state: StateTree) -> None:
        """Before the first quantum of a block."""

    def disturb_late(self, state: StateTree) -> None:
        """Before its last."""

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        self.disturb(state)
        run = super().block(state, action, steps)
        for index in range(steps):
            next(run)
            if index == steps - 1:
                self.disturb_late(state)
            yield
        frames: Frames = yield from run
        self.blocks += 1
        return self.shown(frames)

    def shown(self, frames: Frames) -> Frames:
        return frames


class Counting(Tampered):
    """Counts on the object what belongs into the state."""

    def disturb(self, state: StateTree) -> None:
        state["kv_cache"][1]["k"][0, -1] += self.blocks


class Drawing(Tampered):
    """Draws from torch's global generator."""

    def disturb(self, state: StateTree) -> None:
        state["first_frame"] += torch.rand(1)


class Sharing(Tampered):
    """Keeps a number across a yield in a buffer of all sessions: alone it repeats itself."""

    def disturb(self, state: StateTree) -> None:
        self.scratch.copy_(state["first_frame"].flatten()[0])

    def disturb_late(self, state: StateTree) -> None:
        state["first_frame"].flatten()[1] = self.scratch[0]


class Flickering(Tampered):
    """Its state repeats itself, its frames do not."""

    def shown(self, frames: Frames) -> Frames:
        pixels = bytes([self.blocks % 256]) + frames.pixels[1:]
        return Frames(frames.count, frames.height, frames.width, pixels)
