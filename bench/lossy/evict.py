"""Evict: leave parts of the caches out; the destination has zeros, or what stands in for them."""

from __future__ import annotations

from collections.abc import Callable

from bench.lossy.caches import ROLLING, CacheLeaf, cache_leaves, is_unwired
from bench.lossy.handle import Handle, Scene


def handles(window_frames: int, dropped_frames: int) -> list[Handle]:
    """Of a window of so many latent frames, of which the next block drops the oldest."""
    cuts = range(dropped_frames, window_frames)
    return [
        *(Handle("evict", f"oldest {count} frames", _oldest(count)) for count in cuts),
        Handle("evict", "all frames", _oldest(window_frames)),
        *(Handle("evict", cache, _component(cache)) for cache in (*ROLLING, "crossattn_cache")),
        Handle("evict", "what nothing writes", _evict_unwired),
        *(Handle("truncate", f"oldest {count} frames", _held(count)) for count in cuts),
    ]


def _oldest(count: int) -> Callable[[Scene], int]:
    """Zero the oldest frames of every window."""

    def apply(scene: Scene) -> int:
        return sum(
            _zero_frames(leaf, count)
            for leaf in cache_leaves(scene.config, scene.state)
            if leaf.cache in ROLLING
        )

    return apply


def _held(count: int) -> Callable[[Scene], int]:
    """The oldest frames of every window are not sent: the oldest that is stands in for each.

    The model's window has one length: a shorter one cannot be had, and this leaves attention
    nothing to look at but frames that were kept.
    """

    def apply(scene: Scene) -> int:
        saved = 0
        for leaf in cache_leaves(scene.config, scene.state):
            if leaf.cache in ROLLING:
                for number in range(count):
                    leaf.frame(number).copy_(leaf.frame(count))
                saved += leaf.size_bytes * count // leaf.frames
        return saved

    return apply


def _component(cache: str) -> Callable[[Scene], int]:
    def apply(scene: Scene) -> int:
        return sum(
            _zero_frames(leaf, leaf.frames)
            for leaf in cache_leaves(scene.config, scene.state)
            if leaf.cache == cache
        )

    return apply


def _evict_unwired(scene: Scene) -> int:
    return sum(
        _zero_frames(leaf, leaf.frames)
        for leaf in cache_leaves(scene.config, scene.state)
        if is_unwired(scene.config, leaf)
    )


def _zero_frames(leaf: CacheLeaf, count: int) -> int:
    for number in range(count):
        leaf.frame(number).zero_()
    return leaf.size_bytes * count // leaf.frames
