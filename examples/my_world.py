"""A complete engine of your own: a small world that attends to its last frames.

    PYTHONPATH=examples .venv/bin/worldline check-engine my_world:MyWorld
    PYTHONPATH=examples .venv/bin/worldline up --models my_world:MyWorld
    .venv/bin/worldline open --preset my-world

Read it beside docs/engines.md: build, capture, step one quantum, decode, ladder.
"""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor
from torch.nn.functional import interpolate, scaled_dot_product_attention, silu

from services.engine.world import Action, Frames, StateTree, check_steps
from worldline.errors import InvalidInput
from worldline.state.tree import TensorSpec, materialize, plan

SIDE, CHANNELS, PIXELS_PER_TOKEN = 8, 32, 4
TOKENS = SIDE * SIDE
WINDOW_FRAMES, FRAMES_PER_BLOCK = 8, 4
SIGMAS = (1.0, 0.6, 0.3)
GENERATOR_BYTES = torch.Generator().get_state().numel()


class MyWorld:
    """A `WorldModel`. The object holds weights and nothing else: it serves every session."""

    preset = "my-world"
    denoising_steps = len(SIGMAS)
    quanta_per_block = len(SIGMAS) + 1  # the last one writes the window and decodes

    def __init__(self, weights_seed: int, device: torch.device) -> None:
        """Build: weights are a pure function of the seed, so every node makes the same ones."""
        drawn = torch.Generator().manual_seed(weights_seed)

        def matrix(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=drawn) / rows**0.5).to(device)

        self.device = device
        self.query, self.key, self.value = (matrix(CHANNELS, CHANNELS) for _ in range(3))
        self.widen, self.narrow = matrix(CHANNELS, 64), matrix(64, CHANNELS)
        self.actions, self.colours = matrix(6, CHANNELS), matrix(CHANNELS, 3)

    def warm(self) -> None:
        """Pay what a first block costs, on private memory."""
        layout = plan(self.state_spec())
        buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8, device=self.device)
        state: StateTree = materialize(layout, buffer)  # type: ignore[assignment]
        self.initialise(state, seed=0)
        for _ in self.block(state, Action(0), self.denoising_steps):
            pass

    def state_spec(self) -> StateTree:
        """Capture: everything that decides the next frame, and nothing else."""
        return {
            "window": TensorSpec(torch.float32, (WINDOW_FRAMES, TOKENS, CHANNELS)),
            "generator": TensorSpec(torch.uint8, (GENERATOR_BYTES,)),
            "block_index": 0,
        }

    def initialise(self, state: StateTree, seed: int) -> None:
        """Write every byte: the slot may hold what its last session left."""
        generator = torch.Generator().manual_seed(seed)
        state["window"].copy_(torch.randn(state["window"].shape, generator=generator))
        state["generator"].copy_(generator.get_state())
        state["block_index"] = 0

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        """Step: one yield after every quantum but the last. `steps` is the ladder."""
        check_steps(steps, self.denoising_steps)
        if state["block_index"] != action.block_index:
            raise InvalidInput(
                f"the state is at block {state['block_index']}, not at {action.block_index}",
                leaf="block_index",
                field="action.block_index",
            )
        generator = torch.Generator()
        generator.set_state(state["generator"].to("cpu", copy=True))
        steering = self._steering(action)
        latents = self._noise(generator)
        for index, sigma in enumerate(SIGMAS[:steps]):
            if index:
                latents = (1 - sigma) * latents + sigma * self._noise(generator)
            latents = self._denoised(latents, state["window"], steering)
            yield  # another session may run now; nothing freezes or reads this state
        kept = state["window"][FRAMES_PER_BLOCK:].clone()
        state["window"][:-FRAMES_PER_BLOCK].copy_(kept)  # in place: the leaf is a view of the slot
        state["window"][-FRAMES_PER_BLOCK:].copy_(latents)
        state["generator"].copy_(generator.get_state())
        state["block_index"] = action.block_index + 1  # scalars are replaced
        return self._decoded(latents)

    def _noise(self, generator: torch.Generator) -> Tensor:
        """From the session's generator only; drawn on the CPU, so that its state is the same."""
        return torch.randn(FRAMES_PER_BLOCK, TOKENS, CHANNELS, generator=generator).to(self.device)

    def _steering(self, action: Action) -> Tensor:
        held = [float(action.keyboard >> bit & 1) for bit in range(4)]
        moved = torch.tensor([*held, action.mouse_dx, action.mouse_dy], device=self.device)
        return moved @ self.actions

    def _denoised(self, latents: Tensor, window: Tensor, steering: Tensor) -> Tensor:
        """[frames, tokens, channels]: each token attends to its own place in the window."""
        context = torch.cat([window, latents]).transpose(0, 1)
        query = (latents + steering).transpose(0, 1) @ self.query
        seen = scaled_dot_product_attention(query, context @ self.key, context @ self.value)
        hidden = torch.tanh(latents + seen.transpose(0, 1))
        return torch.tanh(hidden + silu(hidden @ self.widen) @ self.narrow)

    def _decoded(self, latents: Tensor) -> Frames:
        """Decode: uint8 RGB, frame after frame."""
        colours = (latents @ self.colours).permute(0, 2, 1).unflatten(2, (SIDE, SIDE))
        size = SIDE * PIXELS_PER_TOKEN
        pixels = interpolate(colours, (size, size), mode="bilinear", align_corners=False)
        shown = ((pixels.tanh() + 1) * 127.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        return Frames(FRAMES_PER_BLOCK, size, size, shown.cpu().numpy().tobytes())
