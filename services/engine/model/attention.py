"""Attention: self-attention over the rolling window and cross-attention on the first frame."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from services.engine.model.config import WorldConfig
from services.engine.model.rotary import rotate
from services.engine.model.weights import BlockWeights
from services.engine.model.window import Cache, claim


def unit(values: Tensor) -> Tensor:
    """Each channel vector to unit mean square, so that random weights keep scores in range."""
    return values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + 1e-6)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, positions, heads, channels) each; keys and values are read in the query's dtype.

    Caches are bfloat16 views of a slot. The copies made here are aligned alike in every process,
    so the matrix products are too.
    """
    heads_first = (
        query.transpose(1, 2),
        key.to(query.dtype).transpose(1, 2),
        value.to(query.dtype).transpose(1, 2),
    )
    return functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


def attend_window(
    block: BlockWeights,
    config: WorldConfig,
    cache: Cache,
    path: str,
    hidden: Tensor,
    frame_start: int,
    turns: Tensor,
) -> Tensor:
    """Self-attention of a block's tokens (tokens, dim) over the window they are written into."""
    tokens, dim = hidden.shape
    shape = (1, tokens, config.heads, config.head_dim)
    query, key, value = (part.reshape(shape) for part in (hidden @ block.qkv).split(dim, dim=-1))
    begin, end = claim(cache, path, frame_start * config.tokens_per_frame, tokens)
    cache["k"][:, begin:end] = rotate(unit(key), turns)
    cache["v"][:, begin:end] = value
    mixed = attend(rotate(unit(query), turns), cache["k"][:, :end], cache["v"][:, :end])
    return mixed.reshape(tokens, dim) @ block.out


def attend_first_frame(
    block: BlockWeights, config: WorldConfig, cache: Cache, hidden: Tensor, first_frame: Tensor
) -> Tensor:
    """Cross-attention on the first frame, whose tokens (n, dim) are projected once a session."""
    tokens, dim = hidden.shape
    if not cache["is_init"]:
        shape = (1, config.first_frame_tokens, config.heads, config.head_dim)
        key, value = (first_frame @ block.cross_kv).split(dim, dim=-1)
        cache["k"].copy_(unit(key.reshape(shape)))
        cache["v"].copy_(value.reshape(shape))
        cache["is_init"] = True
    query = unit((hidden @ block.cross_q).reshape(1, tokens, config.heads, config.head_dim))
    return attend(query, cache["k"], cache["v"]).reshape(tokens, dim) @ block.cross_out
