"""Attention: self-attention over the rolling window and cross-attention on the first frame."""

from __future__ import annotations

from torch import Tensor

from services.engine.model.config import WorldConfig
from services.engine.model.pointwise import Pointwise, attend
from services.engine.model.weights import BlockWeights, Weights
from services.engine.model.window import Cache
from services.engine.world import StateTree


def attend_window(
    block: BlockWeights,
    config: WorldConfig,
    pointwise: Pointwise,
    cache: Cache,
    span: tuple[int, int],
    hidden: Tensor,
    turns: Tensor,
) -> Tensor:
    """Self-attention of a block's tokens (tokens, dim) over the window they are written into."""
    tokens, dim = hidden.shape
    shape = (1, tokens, config.heads, config.head_dim)
    query, key, value = (part.reshape(shape) for part in (hidden @ block.qkv).split(dim, dim=-1))
    begin, end = span
    pointwise.write_turned(cache["k"][:, begin:end], key, turns)
    cache["v"][:, begin:end] = value
    mixed = attend(pointwise.turned(query, turns), cache["k"][:, :end], cache["v"][:, :end])
    return mixed.reshape(tokens, dim) @ block.out


def fill_first_frame(
    weights: Weights, pointwise: Pointwise, state: StateTree, first_frame: Tensor
) -> None:
    """Project the first frame's tokens (n, dim) into every cross-attention cache, if not yet."""
    config = weights.config
    shape = (1, config.first_frame_tokens, config.heads, config.head_dim)
    for block, cache in zip(weights.blocks, state["crossattn_cache"], strict=True):
        if not cache["is_init"]:
            key, value = (first_frame @ block.cross_kv).split(config.dim, dim=-1)
            cache["k"].copy_(pointwise.unit(key.reshape(shape)))
            cache["v"].copy_(value.reshape(shape))
            cache["is_init"] = True


def attend_first_frame(
    block: BlockWeights, config: WorldConfig, pointwise: Pointwise, cache: Cache, hidden: Tensor
) -> Tensor:
    """Cross-attention of a block's tokens (tokens, dim) on the first frame."""
    tokens, dim = hidden.shape
    shape = (1, tokens, config.heads, config.head_dim)
    query = pointwise.unit((hidden @ block.cross_q).reshape(shape))
    return attend(query, cache["k"], cache["v"]).reshape(tokens, dim) @ block.cross_out
