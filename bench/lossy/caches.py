"""Caches: the attention caches of a state as pieces that can be approximated one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from services.engine.model.config import WorldConfig
from services.engine.model.state import CACHE_KEYS
from services.engine.world import StateTree

#: Caches with a window; the fourth is written once, from the first frame.
ROLLING = ("kv_cache", "kv_cache_mouse", "kv_cache_keyboard")


@dataclass(frozen=True)
class CacheLeaf:
    """One key or value tensor, (batch or token, position, head, channel)."""

    cache: str
    layer: int
    tensor: str
    values: Tensor
    #: Positions that a latent frame takes; all of them in a cache without a window.
    frame_positions: int

    @property
    def size_bytes(self) -> int:
        return self.values.numel() * self.values.element_size()

    def frame(self, number: int) -> Tensor:
        """A view of what one latent frame of the window has here, the oldest first."""
        start = number * self.frame_positions
        return self.values[:, start : start + self.frame_positions]

    @property
    def frames(self) -> int:
        """Latent frames in the window, 1 in a cache without one."""
        return self.values.shape[1] // self.frame_positions


def cache_leaves(config: WorldConfig, state: StateTree) -> Iterator[CacheLeaf]:
    """Every key and value tensor, as views into the state."""
    for cache in CACHE_KEYS:
        for layer, tensors in enumerate(state[cache]):
            for tensor in ("k", "v"):
                values = tensors[tensor]
                yield CacheLeaf(cache, layer, tensor, values, _frame_positions(config, cache))


def is_unwired(config: WorldConfig, leaf: CacheLeaf) -> bool:
    """Whether no block ever writes or reads the leaf."""
    return leaf.cache.startswith("kv_cache_") and leaf.layer >= config.action_layers


def _frame_positions(config: WorldConfig, cache: str) -> int:
    if cache == "crossattn_cache":
        return config.first_frame_tokens
    return config.tokens_per_frame if cache == "kv_cache" else 1
