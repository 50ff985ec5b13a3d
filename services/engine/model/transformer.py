"""Transformer: one pass over a block's tokens at one noise level, reading and writing caches.

A pass is a function of tensors alone: nothing in it waits for the device or looks at a value, so
that it can be captured once and replayed (`graphs`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as functional
from torch import Tensor

from services.engine.model.actions import ActionEmbedding, attend_keyboard, attend_mouse
from services.engine.model.attention import attend_first_frame, attend_window
from services.engine.model.config import WorldConfig
from services.engine.model.pointwise import Pointwise
from services.engine.model.rotary import frame_turns, token_turns
from services.engine.model.weights import SIGMA_CHANNELS, ActionWeights, BlockWeights, Weights
from services.engine.model.window import Spans
from services.engine.world import StateTree


@dataclass(frozen=True)
class BlockInputs:
    """What all passes of one block share."""

    token_turns: Tensor
    frame_turns: Tensor
    keyboard: Tensor
    mouse: Tensor


@dataclass(frozen=True)
class PassInputs(BlockInputs):
    """Everything that a pass reads beside weights and state.

    `latents` (frames_per_block * tokens_per_frame, latent_channels) and `modulation` (6, dim).
    """

    latents: Tensor
    modulation: Tensor


def prepare(weights: Weights, action: ActionEmbedding, frame_start: int) -> BlockInputs:
    """The inputs of the block whose first latent frame is `frame_start` of the session."""
    device = weights.latent_in.device
    return BlockInputs(
        token_turns=token_turns(weights.config, frame_start, device),
        frame_turns=frame_turns(weights.config, frame_start, device),
        keyboard=action.keyboard,
        mouse=action.mouse,
    )


def pass_inputs(block: BlockInputs, latents: Tensor, modulated: Tensor) -> PassInputs:
    """The inputs of one pass from these latents at a noise level with this modulation."""
    shared = {field.name: getattr(block, field.name) for field in fields(BlockInputs)}
    return PassInputs(**shared, latents=latents, modulation=modulated)


def predict(
    weights: Weights, pointwise: Pointwise, state: StateTree, spans: Spans, inputs: PassInputs
) -> Tensor:
    """Predict the clean latents, (frames_per_block * tokens_per_frame, latent_channels).

    Rewrites the positions `spans` of every wired cache.
    """
    config = weights.config
    positions = weights.positions.repeat(config.frames_per_block, 1)
    hidden = inputs.latents @ weights.latent_in + positions
    for index, block in enumerate(weights.blocks):
        hidden = _block(block, weights, pointwise, state, index, spans, inputs, hidden)
    return functional.layer_norm(hidden, (config.dim,)) @ weights.latent_out


def modulation(weights: Weights, sigma: float) -> Tensor:
    """Six shifts, scales and gates for this noise level, (6, dim)."""
    device = weights.sigma_in.device
    steps = torch.arange(SIGMA_CHANNELS // 2, dtype=torch.float32, device=device)
    angles = 1000.0 * sigma * torch.exp(-math.log(10_000.0) / (SIGMA_CHANNELS // 2) * steps)
    embedded = functional.silu(torch.cat((angles.cos(), angles.sin())) @ weights.sigma_in)
    return (embedded @ weights.sigma_modulation).view(6, -1)


def _block(
    block: BlockWeights,
    weights: Weights,
    pointwise: Pointwise,
    state: StateTree,
    index: int,
    spans: Spans,
    inputs: PassInputs,
    hidden: Tensor,
) -> Tensor:
    config = weights.config
    mixed = (inputs.modulation + block.modulation).unbind()
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = mixed
    looked = attend_window(
        block,
        config,
        pointwise,
        state["kv_cache"][index],
        spans.tokens,
        pointwise.modulated(hidden, shift, scale),
        inputs.token_turns,
    )
    hidden, normed = pointwise.gated_normed(hidden, gate, looked)
    update = attend_first_frame(block, config, pointwise, state["crossattn_cache"][index], normed)
    if block.action is not None:
        hidden, update = _act(
            block.action, config, pointwise, state, index, spans, inputs, hidden, update
        )
    hidden, normed = pointwise.added_modulated(hidden, update, ffn_shift, ffn_scale)
    fed = functional.gelu(normed @ block.ffn_in) @ block.ffn_out
    return pointwise.gated(hidden, ffn_gate, fed)


def _act(
    action: ActionWeights,
    config: WorldConfig,
    pointwise: Pointwise,
    state: StateTree,
    index: int,
    spans: Spans,
    inputs: PassInputs,
    hidden: Tensor,
    update: Tensor,
) -> tuple[Tensor, Tensor]:
    """Both action modules behind an update that is still to be added; so is what they return."""
    hidden, normed = pointwise.added_normed(hidden, update)
    update = attend_mouse(
        action,
        config,
        pointwise,
        state["kv_cache_mouse"][index],
        spans.frames,
        normed,
        inputs.mouse,
        inputs.frame_turns,
    )
    hidden, normed = pointwise.added_normed(hidden, update)
    return hidden, attend_keyboard(
        action,
        config,
        pointwise,
        state["kv_cache_keyboard"][index],
        spans.frames,
        normed,
        inputs.keyboard,
        inputs.frame_turns,
    )
