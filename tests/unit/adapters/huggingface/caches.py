"""Small caches of every layer class, and their way into a tree and out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.language import Decoding, qwen_config
from worldline.adapters.huggingface import cache_from, tree_of
from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.tree import materialize, pack, plan

WINDOW = 16
STATIC_TOKENS = 64
#: Two layers see everything and one a window: every layer class in two caches.
SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "max_window_layers": 2,
}
CONFIG = qwen_config(**SIZES)
KINDS = ("dynamic", "on demand", "static")


def moved(tree: dict[str, Any]) -> Any:
    """The tree as another process gets it: bytes of a slot, and a layout off the wire."""
    layout = plan(tree)
    slot = torch.full((layout.extent_bytes,), 0xA5, dtype=torch.uint8)
    layout = pack(tree, layout, slot)
    return materialize(layout_from_proto(layout_to_proto(layout)), slot.clone())


def elsewhere(decoding: Decoding) -> Decoding:
    tree = moved(decoding.state(tree_of(decoding.cache)))
    return Decoding(decoding.model, cache_from(tree["cache"], CONFIG), tree["next_token"])


def layer_of(class_name: str, decode: Callable[..., Decoding]) -> tuple[Any, Any, int]:
    """A started cache that has a layer of the class, the layer and its index."""
    cache = decode("dynamic" if class_name.startswith("Dynamic") else "static").cache
    index = next(i for i, layer in enumerate(cache.layers) if type(layer).__name__ == class_name)
    return cache, cache.layers[index], index
