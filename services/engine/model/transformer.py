"""Transformer: one pass over a block's tokens at one noise level, reading and writing caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from services.engine.model.actions import ActionEmbedding, attend_keyboard, attend_mouse
from services.engine.model.attention import attend_first_frame, attend_window
from services.engine.model.rotary import frame_turns, token_turns
from services.engine.model.weights import SIGMA_CHANNELS, BlockWeights, Weights
from services.engine.world import StateTree


@dataclass(frozen=True)
class BlockInputs:
    """What all passes of one block share."""

    frame_start: int
    token_turns: Tensor
    frame_turns: Tensor
    action: ActionEmbedding
    first_frame: Tensor


def prepare(
    weights: Weights, first_frame: Tensor, action: ActionEmbedding, frame_start: int
) -> BlockInputs:
    """The inputs of the block whose first latent frame is `frame_start` of the session."""
    device = weights.latent_in.device
    return BlockInputs(
        frame_start=frame_start,
        token_turns=token_turns(weights.config, frame_start, device),
        frame_turns=frame_turns(weights.config, frame_start, device),
        action=action,
        first_frame=first_frame @ weights.first_frame_in,
    )


def predict(
    weights: Weights, state: StateTree, inputs: BlockInputs, latents: Tensor, sigma: float
) -> Tensor:
    """Predict the clean latents, (frames_per_block * tokens_per_frame, latent_channels).

    Rewrites the window's last `frames_per_block` frames of every wired cache.
    """
    config = weights.config
    hidden = latents @ weights.latent_in + weights.positions.repeat(config.frames_per_block, 1)
    modulation = _modulation(weights, sigma)
    for index, block in enumerate(weights.blocks):
        hidden = _block(block, weights, state, index, inputs, hidden, modulation)
    return functional.layer_norm(hidden, (config.dim,)) @ weights.latent_out


def _modulation(weights: Weights, sigma: float) -> Tensor:
    """Six shifts, scales and gates for this noise level, (6, dim)."""
    device = weights.sigma_in.device
    steps = torch.arange(SIGMA_CHANNELS // 2, dtype=torch.float32, device=device)
    angles = 1000.0 * sigma * torch.exp(-math.log(10_000.0) / (SIGMA_CHANNELS // 2) * steps)
    embedded = functional.silu(torch.cat((angles.cos(), angles.sin())) @ weights.sigma_in)
    return (embedded @ weights.sigma_modulation).view(6, -1)


def _block(
    block: BlockWeights,
    weights: Weights,
    state: StateTree,
    index: int,
    inputs: BlockInputs,
    hidden: Tensor,
    modulation: Tensor,
) -> Tensor:
    config, dim = weights.config, (weights.config.dim,)
    mixed = (modulation + block.modulation).unbind()
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = mixed
    normed = torch.addcmul(shift, functional.layer_norm(hidden, dim), 1 + scale)
    hidden = hidden + gate * attend_window(
        block,
        config,
        state["kv_cache"][index],
        f"kv_cache[{index}]",
        normed,
        inputs.frame_start,
        inputs.token_turns,
    )
    hidden = hidden + attend_first_frame(
        block,
        config,
        state["crossattn_cache"][index],
        functional.layer_norm(hidden, dim),
        inputs.first_frame,
    )
    if block.action is not None:
        hidden = _act(block, weights, state, index, inputs, hidden)
    normed = torch.addcmul(ffn_shift, functional.layer_norm(hidden, dim), 1 + ffn_scale)
    fed: Tensor = functional.gelu(normed @ block.ffn_in) @ block.ffn_out
    return hidden + ffn_gate * fed


def _act(
    block: BlockWeights,
    weights: Weights,
    state: StateTree,
    index: int,
    inputs: BlockInputs,
    hidden: Tensor,
) -> Tensor:
    if block.action is None:
        return hidden
    config, dim = weights.config, (weights.config.dim,)
    hidden = hidden + attend_mouse(
        block.action,
        config,
        state["kv_cache_mouse"][index],
        f"kv_cache_mouse[{index}]",
        functional.layer_norm(hidden, dim),
        inputs.action.mouse,
        inputs.frame_start,
        inputs.frame_turns,
    )
    return hidden + attend_keyboard(
        block.action,
        config,
        state["kv_cache_keyboard"][index],
        f"kv_cache_keyboard[{index}]",
        functional.layer_norm(hidden, dim),
        inputs.action.keyboard,
        inputs.frame_start,
        inputs.frame_turns,
    )
