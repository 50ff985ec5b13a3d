"""Exact: what the lossy handles are held against."""

from __future__ import annotations

import zlib

import torch

from bench.lossy.caches import cache_leaves
from bench.lossy.handle import Handle, Scene


def handles() -> list[Handle]:
    """The whole state, plain and packed; what is computed again; two changes that save nothing."""
    return [
        Handle("exact", "the whole state", lambda _: 0),
        Handle("exact", "every tensor through zlib", _packed),
        Handle("rebuild", "crossattn_cache from the first frame", _rebuilt),
        Handle("probe", "lowest mantissa bit of every element", _nudged),
        Handle("probe", "another session's caches", _swapped),
    ]


def _packed(scene: Scene) -> int:
    """A lossless code, for its ratio alone: what comes out is what went in."""
    saved = 0
    for leaf in cache_leaves(scene.config, scene.state):
        words = leaf.values.view(torch.uint8)
        sent = zlib.compress(words.numpy().tobytes(), level=1)
        words.copy_(
            torch.frombuffer(bytearray(zlib.decompress(sent)), dtype=torch.uint8).view_as(words)
        )
        saved += leaf.size_bytes - len(sent)
    return saved


def _rebuilt(scene: Scene) -> int:
    """The model projects the first frame, which is in the state, again."""
    saved = 0
    for leaf in cache_leaves(scene.config, scene.state):
        if leaf.cache == "crossattn_cache":
            leaf.values.zero_()
            scene.state[leaf.cache][leaf.layer]["is_init"] = False
            saved += leaf.size_bytes
    return saved


def _nudged(scene: Scene) -> int:
    """Nothing is saved: no approximation that changes every element changes it by less."""
    for leaf in cache_leaves(scene.config, scene.state):
        leaf.values.view(torch.int16).bitwise_xor_(1)
    return 0


def _swapped(scene: Scene) -> int:
    """Nothing that can be called a saving: how far apart two worlds under the same actions are."""
    ours, theirs = cache_leaves(scene.config, scene.state), cache_leaves(scene.config, scene.donor)
    for mine, other in zip(ours, theirs, strict=True):
        mine.values.copy_(other.values)
    return 0
