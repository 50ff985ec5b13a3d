"""Causal world: generates blocks by denoising latents under actions, one quantum a pass."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import cast

import torch
from torch import Tensor

from services.engine.model.actions import embed_action
from services.engine.model.attention import fill_first_frame
from services.engine.model.config import WorldConfig
from services.engine.model.decoder import DecodeInputs, asked_motion, decode
from services.engine.model.noise import SessionNoise, seed_noise, split_noise
from services.engine.model.pointwise import Pointwise, plain
from services.engine.model.state import CACHE_KEYS, state_spec
from services.engine.model.transformer import (
    PassInputs,
    modulation,
    pass_inputs,
    predict,
    prepare,
)
from services.engine.model.weights import Weights
from services.engine.model.window import Spans, claim_block
from services.engine.parts import Parts, exhaust, zeroed
from services.engine.world import Action, Frames, StateTree
from worldline.errors import InvalidInput
from worldline.state.tree import materialize, plan

#: The noise level of the pass that writes the cache for later blocks: none.
CONTEXT_SIGMA = 0.0


class CausalWorld:
    """A `WorldModel`: a quantum for each denoising step, then a context pass at noise level 0.

    Computes in the dtype of its weights; the caches are bfloat16. Holds weights only.
    """

    #: Blocks after which no kernel is new.
    warm_blocks = 1

    def __init__(self, weights: Weights, pointwise: Pointwise | None = None) -> None:
        self.weights = weights
        self.pointwise = pointwise or plain(weights.dtype)
        self.config: WorldConfig = weights.config
        self._device = weights.latent_in.device
        with torch.no_grad():
            levels = (*self.config.sigmas, CONTEXT_SIGMA)
            self._modulations = {sigma: modulation(weights, sigma) for sigma in levels}

    @property
    def preset(self) -> str:
        """The preset's name."""
        return self.config.name

    @property
    def quanta_per_block(self) -> int:
        """Denoising quanta and the context pass."""
        return self.config.quanta_per_block

    @property
    def denoising_steps(self) -> int:
        """Noise levels that a block is denoised from."""
        return len(self.config.sigmas)

    def warm(self) -> None:
        """Generate the first blocks of a throwaway session."""
        exhaust(self.warming())

    def warming(self) -> Parts[None]:
        """See `InParts`."""
        spec = self.state_spec()
        layout = plan(spec)
        buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8, device=self._device)
        state = cast(StateTree, materialize(layout, buffer))
        yield from self.initialising(state, seed=0)
        for index in range(self.warm_blocks):
            for _ in self.block(state, Action(index), self.denoising_steps):
                yield

    def state_spec(self) -> StateTree:
        """See `WorldModel.state_spec`."""
        return state_spec(self.config)

    def initialise(self, state: StateTree, seed: int) -> None:
        """Empty caches, and a first frame drawn from `seed`."""
        exhaust(initialising(state, seed))

    def initialising(self, state: StateTree, seed: int) -> Parts[None]:
        """See `InParts`."""
        return initialising(state, seed)

    def split(self, state: StateTree, branch: int) -> None:
        """See `SplitsNoise.split`."""
        split_noise(state["noise"]["generator"], branch)

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        """See `WorldModel.block`. Denoises with fresh noise between quanta (self-forcing).

        Fewer steps go through the levels that `WorldConfig.sigmas_of` says; the context pass
        always runs, so that the cache is one of clean latents whatever the quality.
        """
        config = self.config
        sigmas = config.sigmas_of(steps)
        expect_block(state, action)
        with torch.no_grad():
            noise = SessionNoise(state["noise"]["generator"])
            frame_start = action.block_index * config.frames_per_block
            spans = claim_block(config, state, frame_start)
            self._fill_first_frame(state)
            inputs = prepare(self.weights, embed_action(self.weights, action), frame_start)
            shape = (config.frames_per_block * config.tokens_per_frame, config.latent_channels)
            run = self.passes(state, spans)
            latents = noise.normal(shape)
        for index, sigma in enumerate(sigmas):
            with torch.no_grad():
                latents = run(pass_inputs(inputs, latents, self._modulations[sigma]))
                for next_sigma in sigmas[index + 1 : index + 2]:
                    # Drawn here, on the CPU, while a device is busy with the pass.
                    fresh = noise.normal(shape)
                    latents = (1.0 - next_sigma) * latents + next_sigma * fresh
            # Grad mode belongs to the thread: it must not be left changed across a yield.
            yield
        with torch.no_grad():
            noise.store()
            # The context pass: the cache as later blocks see it comes from the clean latents.
            run(pass_inputs(inputs, latents, self._modulations[CONTEXT_SIGMA]))
            return self._finish(state, latents, action)

    def passes(self, state: StateTree, spans: Spans) -> Callable[[PassInputs], Tensor]:
        """The passes of one block, see `transformer.predict`."""
        return partial(predict, self.weights, self.pointwise, state, spans)

    def decode(self, state: StateTree, inputs: DecodeInputs) -> Tensor:
        """The pixels of one block, see `decoder.decode`."""
        return decode(self.weights, state, inputs)

    def _fill_first_frame(self, state: StateTree) -> None:
        if all(cache["is_init"] for cache in state["crossattn_cache"]):
            return
        first_frame = (state["first_frame"] @ self.weights.first_frame_in).to(self.weights.dtype)
        fill_first_frame(self.weights, self.pointwise, state, first_frame)

    def _finish(self, state: StateTree, latents: Tensor, action: Action) -> Frames:
        inputs = DecodeInputs(latents, asked_motion(action, self._device))
        pixels = self.decode(state, inputs).cpu()
        state["block_index"] = action.block_index + 1
        count, height, width, _ = pixels.shape
        return Frames(count, height, width, pixels.numpy().tobytes())


def expect_block(state: StateTree, action: Action) -> None:
    """The action must be for the state's next block.

    Raises:
        InvalidInput: it is for another one.
    """
    if state["block_index"] != action.block_index:
        raise InvalidInput(
            f"the state is at block {state['block_index']}, the action for {action.block_index}",
            leaf="block_index",
            field="action.block_index",
        )


def initialising(state: StateTree, seed: int) -> Parts[None]:
    """A fresh session's state: everything zero but the generator and the first frame."""
    if not 0 <= seed < 1 << 64:
        raise InvalidInput(f"world.seed is {seed}: must fit 64 bits", field="world.seed")
    empty: list[Tensor] = []
    for key in CACHE_KEYS:
        for cache in state[key]:
            for name, leaf in cache.items():
                if isinstance(leaf, Tensor):
                    empty.append(leaf)
                else:
                    cache[name] = False
    yield from zeroed([*empty, *state["decoder"].values()])
    generator = seed_noise(state["noise"]["generator"], seed)
    first_frame = state["first_frame"]
    texture = torch.randn(first_frame.shape, generator=generator)
    # The first frame is not noise: neighbours are alike, and the whole has a colour of its own.
    first_frame.copy_(0.5 * texture + torch.randn(first_frame.shape[1], generator=generator))
    state["noise"]["generator"].copy_(generator.get_state())
    state["block_index"] = 0
