"""Action modules: mouse attention per spatial token over frames, keyboard attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.model.config import WorldConfig
from services.engine.model.pointwise import Pointwise, attend
from services.engine.model.weights import ActionWeights, Weights
from services.engine.model.window import Cache
from services.engine.world import Action


@dataclass(frozen=True)
class ActionEmbedding:
    """A block's action as the model sees it: (frames_per_block, ACTION_CHANNELS) each."""

    keyboard: Tensor
    mouse: Tensor


def embed_action(weights: Weights, action: Action) -> ActionEmbedding:
    """Embed one action; it holds for every latent frame of its block."""
    device = weights.latent_in.device
    frames = weights.config.frames_per_block
    keys = [float(action.keyboard >> bit & 1) for bit in range(4)]
    dx, dy = action.mouse_dx, action.mouse_dy
    keyboard = torch.tensor([keys], dtype=torch.float32, device=device) @ weights.keyboard_in
    motion = torch.tensor([[dx, dy, abs(dx), abs(dy)]], dtype=torch.float32, device=device)
    mouse = motion @ weights.mouse_in
    dtype = weights.dtype
    return ActionEmbedding(keyboard.to(dtype).repeat(frames, 1), mouse.to(dtype).repeat(frames, 1))


def attend_mouse(
    block: ActionWeights,
    config: WorldConfig,
    pointwise: Pointwise,
    cache: Cache,
    span: tuple[int, int],
    hidden: Tensor,
    mouse: Tensor,
    turns: Tensor,
) -> Tensor:
    """Each spatial token looks along its own frames; cache (tokens_per_frame, window, h, d)."""
    frames, tokens = config.frames_per_block, config.tokens_per_frame
    seen = torch.cat(
        (hidden.view(frames, tokens, -1), mouse[:, None, :].expand(-1, tokens, -1)), dim=-1
    )
    shape = (frames, tokens, config.action_heads, config.action_head_dim)
    query, key, value = (
        part.reshape(shape).transpose(0, 1)
        for part in (seen @ block.mouse_qkv).split(config.action_dim, dim=-1)
    )
    begin, end = span
    pointwise.write_turned(cache["k"][:, begin:end], key, turns)
    cache["v"][:, begin:end] = value
    query = pointwise.turned(query, turns)
    mixed = pointwise.attend_frames(query, cache["k"][:, :end], cache["v"][:, :end])
    return mixed.transpose(0, 1).reshape(frames * tokens, -1) @ block.mouse_out


def attend_keyboard(
    block: ActionWeights,
    config: WorldConfig,
    pointwise: Pointwise,
    cache: Cache,
    span: tuple[int, int],
    hidden: Tensor,
    keyboard: Tensor,
    turns: Tensor,
) -> Tensor:
    """Every token looks at the keys of the window's frames; cache (1, window, h, d)."""
    tokens = hidden.shape[0]
    shape = (1, -1, config.action_heads, config.action_head_dim)
    key, value = (keyboard @ block.keyboard_kv).split(config.action_dim, dim=-1)
    begin, end = span
    pointwise.write_turned(cache["k"][:, begin:end], key.reshape(shape), turns)
    cache["v"][:, begin:end] = value.reshape(shape)
    spread = turns.repeat_interleave(config.tokens_per_frame, dim=0)
    query = pointwise.turned((hidden @ block.keyboard_q).reshape(shape), spread)
    mixed = attend(query, cache["k"][:, :end], cache["v"][:, :end])
    return mixed.reshape(tokens, -1) @ block.keyboard_out
