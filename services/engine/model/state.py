"""State: the tree that one session of a world needs, and what its two parts weigh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.model.config import WorldConfig
from services.engine.world import StateTree
from worldline.state.tree import TensorSpec

#: The attention caches: the part whose shape and bytes are the original model's.
CACHE_KEYS = ("kv_cache", "kv_cache_mouse", "kv_cache_keyboard", "crossattn_cache")
#: Bytes of torch's CPU generator (mt19937) as `Generator.get_state()` gives them.
GENERATOR_BYTES = int(torch.Generator().get_state().numel())


@dataclass(frozen=True)
class StateSize:
    """What a state tree holds: tensors and their bytes, and scalars."""

    tensors: int
    scalars: int
    size_bytes: int

    @property
    def leaves(self) -> int:
        """Tensors and scalars."""
        return self.tensors + self.scalars


def state_spec(config: WorldConfig) -> StateTree:
    """The session's tree: attention caches, and what else decides the next frame."""
    window, heads = config.window_frames, (config.heads, config.head_dim)
    action = (window, config.action_heads, config.action_head_dim)
    layers = range(config.layers)
    return {
        "kv_cache": [_rolling((1, config.window_tokens, *heads)) for _ in layers],
        "kv_cache_mouse": [_rolling((config.tokens_per_frame, *action)) for _ in layers],
        "kv_cache_keyboard": [_rolling((1, *action)) for _ in layers],
        "crossattn_cache": [_cross((1, config.first_frame_tokens, *heads)) for _ in layers],
        "decoder": {
            "latent": TensorSpec(torch.float32, (config.tokens_per_frame, config.latent_channels)),
            "pose": TensorSpec(torch.float32, (4,)),
            "velocity": TensorSpec(torch.float32, (4,)),
        },
        "noise": {"generator": TensorSpec(torch.uint8, (GENERATOR_BYTES,))},
        "first_frame": TensorSpec(
            torch.float32, (config.first_frame_tokens, config.latent_channels)
        ),
        "block_index": 0,
    }


def _rolling(shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "k": TensorSpec(torch.bfloat16, shape),
        "v": TensorSpec(torch.bfloat16, shape),
        "global_end_index": TensorSpec(torch.int64, (1,)),
        "local_end_index": TensorSpec(torch.int64, (1,)),
    }


def _cross(shape: tuple[int, ...]) -> dict[str, Any]:
    spec = TensorSpec(torch.bfloat16, shape)
    return {"k": spec, "v": TensorSpec(spec.dtype, spec.shape), "is_init": False}


def cache_size(config: WorldConfig) -> StateSize:
    """The attention caches alone: what the paper's figures count."""
    spec = state_spec(config)
    return _size([spec[key] for key in CACHE_KEYS])


def session_size(config: WorldConfig) -> StateSize:
    """The rest: decoder, noise generator, first frame, block index."""
    spec = state_spec(config)
    return _size([value for key, value in spec.items() if key not in CACHE_KEYS])


def _size(tree: Any) -> StateSize:
    if isinstance(tree, TensorSpec):
        return StateSize(1, 0, math.prod(tree.shape) * tree.dtype.itemsize)
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, list):
        return StateSize(0, 1, 0)
    parts = [_size(part) for part in tree]
    return StateSize(
        sum(part.tensors for part in parts),
        sum(part.scalars for part in parts),
        sum(part.size_bytes for part in parts),
    )
