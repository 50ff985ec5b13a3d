"""Dirty world: a preset's state without its compute.

The one special case of the engine: on a CPU a block of `mg2` would take minutes, but its state
can be allocated, rewritten as the window rule says and moved. Frames are not generated: the
world says so by `Frames.count == 0`. What is rewritten is random, from the session's own noise
generator, so blocks stay deterministic and a twin can be compared.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

from services.engine.model.causal import expect_block, initialising
from services.engine.model.config import WorldConfig
from services.engine.model.noise import SessionNoise, split_noise
from services.engine.model.state import state_spec
from services.engine.model.window import Cache, claim_block
from services.engine.parts import Parts, exhaust
from services.engine.world import NO_FRAMES, Action, Frames, StateTree, check_steps

#: Layers of a sample: the first has action caches that are written, as half of all have.
SAMPLE_LAYERS = 1


class DirtyWorld:
    """A `WorldModel` that rewrites exactly what a block of the real one rewrites."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config

    @property
    def preset(self) -> str:
        """The preset's name."""
        return self.config.name

    @property
    def quanta_per_block(self) -> int:
        """One, whatever the steps: there is nothing to denoise."""
        return 1

    @property
    def denoising_steps(self) -> int:
        """Those of the computing world: a contract reads the same on either."""
        return len(self.config.sigmas)

    def sample(self) -> DirtyWorld:
        """The same world with fewer layers: each has the same caches, written by the same code.

        What holds for the bits of one layer holds for all: none reads what another has written.
        """
        layers = min(SAMPLE_LAYERS, self.config.layers)
        action_layers = min(SAMPLE_LAYERS, self.config.action_layers)
        config = replace(self.config, layers=layers, action_layers=action_layers)
        return type(self)(config)

    def warm(self) -> None:
        """Nothing to warm: no weights, no kernels."""

    def warming(self) -> Parts[None]:
        """See `InParts`."""
        yield from ()

    def state_spec(self) -> StateTree:
        """The same tree as the computing world's."""
        return state_spec(self.config)

    def initialise(self, state: StateTree, seed: int) -> None:
        """The same first state as the computing world's."""
        exhaust(initialising(state, seed))

    def initialising(self, state: StateTree, seed: int) -> Parts[None]:
        """See `InParts`."""
        return initialising(state, seed)

    def split(self, state: StateTree, branch: int) -> None:
        """See `SplitsNoise.split`."""
        split_noise(state["noise"]["generator"], branch)

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        """Rewrite the window for one block; shows no frames. Action and steps change nothing."""
        check_steps(steps, self.denoising_steps)
        expect_block(state, action)
        yield from ()
        noise = SessionNoise(state["noise"]["generator"])
        dirty(self.config, state, noise.generator)
        noise.store()
        state["block_index"] = action.block_index + 1
        return NO_FRAMES


def dirty(config: WorldConfig, state: StateTree, generator: torch.Generator) -> None:
    """One block's writes with random bytes: window half, shifts, indices, first-frame caches.

    The caches of the unwired action modules are left alone, as in the model.
    """
    spans = claim_block(config, state, state["block_index"] * config.frames_per_block)
    for index in range(config.layers):
        _rewrite(state["kv_cache"][index], spans.tokens, generator)
        cross = state["crossattn_cache"][index]
        if not cross["is_init"]:
            _fill(cross["k"], generator)
            _fill(cross["v"], generator)
            cross["is_init"] = True
    for name in ("kv_cache_mouse", "kv_cache_keyboard"):
        for index in range(config.action_layers):
            _rewrite(state[name][index], spans.frames, generator)
    for leaf in state["decoder"].values():
        leaf.copy_(torch.randn(leaf.shape, generator=generator))


def _rewrite(cache: Cache, span: tuple[int, int], generator: torch.Generator) -> None:
    begin, end = span
    _fill(cache["k"][:, begin:end], generator)
    _fill(cache["v"][:, begin:end], generator)


def _fill(leaf: Tensor, generator: torch.Generator) -> None:
    """Random bits, NaNs among them; eight bytes a draw, because this is the bulk of the time."""
    size_bytes = leaf.numel() * leaf.element_size()
    words = torch.empty((size_bytes + 7) // 8, dtype=torch.int64)
    words.random_(generator=generator)
    leaf.copy_(words.view(torch.uint8)[:size_bytes].view(leaf.dtype).view(leaf.shape))
