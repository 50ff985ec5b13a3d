"""Cache ends: what a Hugging Face cache costs beside its transfer, packed and installed again.

Of the shape of Qwen2-0.5B's, 24 layers over 1,024 tokens, in tensors that a model would have made:
one copy of all leaves into a slot, and a cache of views made from what lies there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bench.contestant import Contestant, Failed, Skipped
from services.engine.carrier import Carrier, carrier_for
from worldline.adapters.huggingface import cache_from, tree_of
from worldline.state.harvest import harvest
from worldline.state.tree import materialize, plan

LAYERS, HEADS, TOKENS, HEAD_DIM = 24, 2, 1_024, 64
PACK_MS, INSTALL_MS = "pack_ms", "install_ms"


class CacheEnds(Contestant):
    """Packs and installs on one device; `figures` has both, `run` their sum."""

    def __init__(self, name: str, device: str, settle: Callable[[], None]) -> None:
        """`settle` waits until everything that is queued on the device is done."""
        super().__init__(name)
        self._device = device
        self._settle = settle
        self._carrier: Carrier | None = None

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        try:
            from transformers import Qwen2Config
        except ImportError as error:
            raise Skipped(f"transformers is not installed: {error}") from error
        self._config = Qwen2Config(num_hidden_layers=LAYERS, num_key_value_heads=HEADS)
        self._cache = _random_cache(self._config, self._device)
        tree = tree_of(self._cache)
        self._layout = plan(tree)
        self._slot = torch.empty(self._layout.extent_bytes, dtype=torch.uint8, device=self._device)
        tensors = [item.value for item in harvest(tree).tensors]
        self._carrier = carrier_for(self._layout, tensors, self._slot)
        self.run()

    def run(self) -> float:
        """See `Contestant.run`."""
        if self._carrier is None:
            raise Failed("it was not prepared")
        self._slot.zero_()
        self._settle()
        begun = time.perf_counter()
        self._carrier.to_slot(self._slot)
        self._settle()
        packed = time.perf_counter()
        tree: Any = materialize(self._layout, self._slot)
        installed = cache_from(tree, self._config)
        ended = time.perf_counter()
        if not _equal(self._cache, installed):
            raise Failed("what was installed is not what was packed")
        self.figures = {PACK_MS: (packed - begun) * 1e3, INSTALL_MS: (ended - packed) * 1e3}
        return ended - begun

    def close(self) -> None:
        """See `Contestant.close`."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.close()


def _random_cache(config: Any, device: str) -> Any:
    """A dynamic cache as prefill leaves one, full of random numbers."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    generator = torch.Generator().manual_seed(LAYERS)
    for layer in range(LAYERS):
        shape = (2, 1, HEADS, TOKENS, HEAD_DIM)
        drawn = torch.randn(shape, generator=generator).to(device, torch.bfloat16)
        cache.update(drawn[0], drawn[1], layer)
    return cache


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(one.layers, other.layers, strict=True)
    return all(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in pairs)
