"""A small pipeline that keeps its caches as Self-Forcing and its descendants do.

Three flavours, after what their sources write: `tensors` (Matrix-Game-2, LongLive: int64 tensors
and Python bools), `numbers` (Krea: Python ints and bools), `flags` (tensors for all of it).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from worldline.state.digest import crc64

FLAVOURS = ("tensors", "numbers", "flags")
BLOCKS, HEADS, HEAD_DIM = 3, 2, 8
DIM = HEADS * HEAD_DIM
FRAME_TOKENS, FRAMES_PER_BLOCK, WINDOW_FRAMES, TEXT_TOKENS = 4, 2, 6, 5


class Pipeline:
    """Generates block after block; weights are a pure function of nothing."""

    def __init__(self, flavour: str) -> None:
        self.flavour = flavour
        drawn = torch.Generator().manual_seed(11)
        shapes = [(DIM, DIM)] * (6 * BLOCKS) + [(DIM, DIM), (DIM, DIM)]
        self.weights = [torch.randn(shape, generator=drawn) / DIM**0.5 for shape in shapes]
        self.text = torch.randn(TEXT_TOKENS, DIM, generator=drawn)
        self.generator = torch.Generator()
        self.current_start_frame = 0
        self.kv_cache1: Any = None
        self.kv_cache_mouse: Any = None
        self.crossattn_cache: Any = None
        self.vae_cache: Any = None

    def begin(self, seed: int) -> None:
        """Caches of a fresh session."""
        self.generator.manual_seed(seed)
        self.current_start_frame = 0
        self.kv_cache1 = [self._rolling(FRAME_TOKENS) for _ in range(BLOCKS)]
        self.kv_cache_mouse = [self._rolling(1) for _ in range(BLOCKS)]
        self.crossattn_cache = [
            {"k": _zeros(TEXT_TOKENS), "v": _zeros(TEXT_TOKENS), "is_init": self._flag()}
            for _ in range(BLOCKS)
        ]
        self.vae_cache = [None, None]

    def block(self) -> int:
        """One block; the CRC-64 of what it shows."""
        latents = torch.randn(FRAMES_PER_BLOCK * FRAME_TOKENS, DIM, generator=self.generator)
        for noise in (0.5, 0.0):  # a denoising step, and the pass that rewrites the caches
            latents = self._predicted(latents + noise * self._noise(latents))
        self.current_start_frame += FRAMES_PER_BLOCK
        return crc64(self._decoded(latents).numpy().tobytes())

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator)

    def _rolling(self, tokens: int) -> dict[str, Any]:
        index = (lambda: 0) if self.flavour == "numbers" else (lambda: torch.tensor([0]))
        keys, values = (_zeros(WINDOW_FRAMES * tokens) for _ in range(2))
        return {"k": keys, "v": values, "global_end_index": index(), "local_end_index": index()}

    def _flag(self) -> Any:
        return torch.zeros(1, dtype=torch.bool) if self.flavour == "flags" else False

    def _predicted(self, hidden: Tensor) -> Tensor:
        for index in range(BLOCKS):
            own = self.weights[6 * index : 6 * index + 6]
            rolling, mouse = self.kv_cache1[index], self.kv_cache_mouse[index]
            hidden = hidden + self._attended(hidden, own, rolling, FRAME_TOKENS)
            motion = hidden.view(FRAMES_PER_BLOCK, FRAME_TOKENS, DIM).mean(1)
            seen = self._attended(motion, own, mouse, 1)
            hidden = hidden + seen.repeat_interleave(FRAME_TOKENS, 0)
            hidden = torch.tanh(hidden + self._read(hidden, own, self.crossattn_cache[index]))
        return hidden

    def _attended(self, hidden: Tensor, own: list[Tensor], cache: Any, tokens: int) -> Tensor:
        """Roll the window if it is full, write this block behind it, attend to all of it."""
        count, end = hidden.shape[0], self.current_start_frame * tokens + hidden.shape[0]
        size = cache["k"].shape[1]
        at = int(cache["local_end_index"]) + end - int(cache["global_end_index"])
        if at > size:
            kept = size - (at - size)
            for name in ("k", "v"):
                cache[name][:, :kept] = cache[name][:, size - kept :].clone()
            at = size
        cache["k"][:, at - count : at] = _heads(hidden @ own[0])
        cache["v"][:, at - count : at] = _heads(hidden @ own[1])
        for name, value in (("global_end_index", end), ("local_end_index", at)):
            if self.flavour == "numbers":
                cache[name] = value
            else:
                cache[name].fill_(value)
        return _attention(hidden @ own[2], cache["k"][:, :at], cache["v"][:, :at])

    def _read(self, hidden: Tensor, own: list[Tensor], cache: Any) -> Tensor:
        """Project the text once; some put other tensors in place of the zeros, some write there."""
        if not cache["is_init"]:
            keys, values = _heads(self.text @ own[3]), _heads(self.text @ own[4])
            if self.flavour == "flags":
                cache["k"].copy_(keys)
                cache["v"].copy_(values)
                cache["is_init"].fill_(True)
            else:
                cache["k"], cache["v"], cache["is_init"] = keys, values, True
        return _attention(hidden @ own[5], cache["k"], cache["v"])

    def _decoded(self, latents: Tensor) -> Tensor:
        """Two causal convolutions of two frames: each begins with nothing, then with a mark."""
        for index, weight in enumerate(self.weights[-2:]):
            frames = latents.view(-1, FRAME_TOKENS, DIM)
            before = self.vae_cache[index]
            if before is None:
                self.vae_cache[index] = "Rep"
                past = torch.zeros_like(frames[:1])
            else:
                past = torch.zeros_like(frames[:1]) if before == "Rep" else before
                self.vae_cache[index] = frames[-1:].clone()
            shifted = torch.cat([past, frames[:-1]])
            latents = torch.tanh(frames + shifted @ weight).reshape(-1, DIM)
        return latents

    def state(self, tree: dict[str, Any]) -> dict[str, Any]:
        """All that decides the next block: the caches' tree, the noise, the frame to start at."""
        return {
            "caches": tree,
            "generator": self.generator.get_state(),
            "current_start_frame": self.current_start_frame,
        }

    def install(self, caches: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, cache in caches.items():
            setattr(self, name, cache)
        self.generator.set_state(state["generator"].clone())
        self.current_start_frame = state["current_start_frame"]


def _zeros(tokens: int) -> Tensor:
    return torch.zeros(1, tokens, HEADS, HEAD_DIM)


def _heads(hidden: Tensor) -> Tensor:
    return hidden.view(1, -1, HEADS, HEAD_DIM)


def _attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    parts = (part.transpose(1, 2) for part in (_heads(query), keys, values))
    return scaled_dot_product_attention(*parts).transpose(1, 2).reshape(-1, DIM)
