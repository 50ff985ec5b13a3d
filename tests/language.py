"""A language model of Qwen2-0.5B's cache shape, small everywhere else, and greedy decoding.

24 layers of 2 key-value heads of 64, 14 query heads: 12,288 bytes of bfloat16 cache a token, as the
real one. Weights are drawn from a seed, wide enough that every step's choice hangs on the cache.
Nothing is downloaded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM, StaticCache

from worldline.state.digest import crc64

LAYERS = 24
#: Keys and values of every layer.
KV_LEAVES = 2 * LAYERS
BYTES_PER_TOKEN = KV_LEAVES * 2 * 64 * 2
SEED = 20_26
STATIC_TOKENS = 1_024


def qwen_config(**changes: Any) -> Qwen2Config:
    """Qwen2-0.5B's configuration with narrow hidden layers and a small vocabulary."""
    values: dict[str, Any] = {
        "vocab_size": 2_048,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 32_768,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    return Qwen2Config(**{**values, **changes})


def language_model(
    config: Qwen2Config, device: str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> Qwen2ForCausalLM:
    """The model with seeded weights: the same on every device and in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Qwen2ForCausalLM(config)
    model.to(device=device, dtype=dtype).eval()
    return model


def prompt(config: Qwen2Config, tokens: int, device: str = "cpu") -> torch.Tensor:
    """Seeded token ids, [1, tokens]."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(config.vocab_size, (1, tokens), generator=generator).to(device)


def new_cache(kind: str, config: Qwen2Config, static_tokens: int = STATIC_TOKENS) -> Any:
    """A fresh cache: `dynamic`, `on demand` (without a configuration) or `static`."""
    match kind:
        case "dynamic":
            return DynamicCache(config=config)
        case "on demand":
            return DynamicCache()
        case "static":
            return StaticCache(config=config, max_cache_len=static_tokens)
        case _:
            raise ValueError(kind)


@dataclass
class Decoding:
    """One greedy decoding: its cache, its next token, and what it has said so far."""

    model: Qwen2ForCausalLM
    cache: Any
    #: [1, 1], chosen but not yet fed to the model.
    next_token: torch.Tensor
    tokens: list[int] = field(default_factory=list)
    #: CRC-64 of each step's logits: equal tokens may hide unequal numbers.
    logits: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, model: Qwen2ForCausalLM, cache: Any, ids: torch.Tensor) -> Decoding:
        """Read the prompt."""
        with torch.no_grad():
            output = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cls(model, cache, output.logits[:, -1].argmax(-1, keepdim=True))

    def go_on(self, steps: int) -> Decoding:
        """Decode `steps` more tokens."""
        with torch.no_grad():
            for _ in range(steps):
                self.tokens.append(int(self.next_token))
                output = self.model(self.next_token, past_key_values=self.cache, use_cache=True)
                row = output.logits[:, -1]
                self.logits.append(crc64(row.float().cpu().numpy().tobytes()))
                self.next_token = row.argmax(-1, keepdim=True)
        return self

    def state(self, cache_tree: dict[str, Any]) -> dict[str, Any]:
        """All that decides the next token: the cache, and the token to feed."""
        return {"cache": cache_tree, "next_token": self.next_token}
