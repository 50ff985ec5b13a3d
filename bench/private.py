"""Private session: a world's state in memory of its own, to be copied, changed and played."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from services.engine.model.causal import CausalWorld
from services.engine.model.config import PRESETS, preset
from services.engine.model.factory import FULL_SIZE
from services.engine.model.weights import build_weights
from services.engine.world import Action, StateTree
from worldline.errors import InvalidInput
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.tree import materialize, pack, plan

#: RGB of one block, uint8 (frames, height, width, 3).
Picture = NDArray[np.uint8]
WEIGHTS_SEED = 0


class PrivateSession:
    """One session beside all services: no slot, no engine process, the same model and bytes."""

    def __init__(self, world: CausalWorld, seed: int) -> None:
        self.world = world
        self.layout: Layout = plan(world.state_spec())
        self.buffer = torch.zeros(self.layout.extent_bytes, dtype=torch.uint8)
        self.tree = cast(StateTree, materialize(self.layout, self.buffer))
        world.initialise(self.tree, seed)

    def play(self) -> Picture:
        """The next block, under the action that `walk` has for it."""
        run = self.world.block(self.tree, walk(self.tree["block_index"]), self.steps)
        while True:
            try:
                next(run)
            except StopIteration as finished:
                frames = finished.value
                shape = (frames.count, frames.height, frames.width, 3)
                return np.frombuffer(frames.pixels, dtype=np.uint8).reshape(shape)

    @property
    def steps(self) -> int:
        """Of full quality."""
        return self.world.denoising_steps

    def digest(self) -> int:
        """Whole digest of bytes and scalars: equal for equal states, and for no others."""
        layout = pack(self.tree, self.layout, self.buffer)
        return digest_slot(layout, self.buffer.numpy().data).whole

    def copy(self) -> PrivateSession:
        """A twin at the same block, in memory of its own."""
        twin = PrivateSession.__new__(PrivateSession)
        twin.world = self.world
        twin.layout = pack(self.tree, self.layout, self.buffer)
        twin.buffer = self.buffer.clone()
        twin.tree = cast(StateTree, materialize(twin.layout, twin.buffer))
        return twin


def world_of(name: str) -> CausalWorld:
    """The world of a preset on the CPU, computing.

    Raises:
        InvalidInput: there is no such preset, or none that a CPU computes.
    """
    names = [each for each in PRESETS if each not in FULL_SIZE]
    if name not in names:
        raise InvalidInput(f"{name!r} is none of {', '.join(names)}", field="preset")
    return CausalWorld(build_weights(preset(name), WEIGHTS_SEED, torch.device("cpu")))


def warm_session(world: CausalWorld, seed: int, blocks: int) -> PrivateSession:
    """A session that has played so many blocks."""
    session = PrivateSession(world, seed)
    for _ in range(blocks):
        session.play()
    return session


def walk(block_index: int) -> Action:
    """An action for every block: a key is always down, so that no action cache holds zeros."""
    return Action(
        block_index,
        keyboard=1 + block_index * 5 % 15,
        mouse_dx=(block_index * 3 % 7 - 3) / 3,
        mouse_dy=(block_index * 5 % 5 - 2) / 4,
    )
