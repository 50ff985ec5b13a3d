"""Window: which positions of the rolling caches a block writes.

A cache holds `window_frames` latent frames along dimension 1. A block fills the free end; once
the window is full, the kept half is shifted to the front and the block is written behind it.
All passes of one block write the same positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.model.config import WorldConfig
from services.engine.world import StateTree
from worldline.errors import InvalidInput

Cache = dict[str, Any]


@dataclass(frozen=True)
class Spans:
    """Positions [begin, end) that a block writes and up to whose end it reads."""

    #: Of the self-attention caches, in tokens.
    tokens: tuple[int, int]
    #: Of the action caches, in latent frames.
    frames: tuple[int, int]


@dataclass(frozen=True)
class _Window:
    """One rolling cache, and the positions of the session that the block is at."""

    path: str
    cache: Cache
    start: int
    count: int


def kept(local_end: int, capacity: int, count: int) -> range:
    """Positions of a window, as it lies now, that its next block of `count` reads.

    Every other position is overwritten before anything reads it: what has not been written yet,
    and in a full window the half that falls out (the paper's roll geometry, section 3.3).
    """
    return range(max(0, local_end + count - capacity), local_end)


def claim_block(config: WorldConfig, state: StateTree, frame_start: int) -> Spans:
    """Make room in every wired cache for the block whose first latent frame is `frame_start`.

    Raises:
        InvalidInput: a cache's indices are not those of a session at that frame: the state was
            not written by this model up to this block. `leaf` names the index. Nothing is changed.
    """
    windows = list(_wired(config, state, frame_start))
    # Read together: on a device each reading is a wait.
    ends = torch.cat(
        [window.cache[f"{end}_end_index"] for window in windows for end in ("global", "local")]
    ).tolist()
    for window, global_end, local_end in zip(windows, ends[::2], ends[1::2], strict=True):
        _check(window, global_end, local_end)
    caches = len(windows) - 2 * config.action_layers
    spans = [
        claim([window.cache for window in part], part[0].start, part[0].count) if part else (0, 0)
        for part in (windows[:caches], windows[caches:])
    ]
    return Spans(*spans)


def claim(caches: Sequence[Cache], start: int, count: int) -> tuple[int, int]:
    """Shift caches of one capacity for positions [start, start + count), advance their indices.

    Returns the local range. The caches are those of a session at `start`.
    """
    capacity = int(caches[0]["k"].shape[1])
    local_end = min(start, capacity)
    survivors = kept(local_end, capacity, count)
    if survivors.start > 0:
        leaves = [cache[name] for cache in caches for name in ("k", "v")]
        moved = [leaf[:, survivors.start : survivors.stop] for leaf in leaves]
        if survivors.start < len(survivors):
            moved = [part.clone() for part in moved]  # ranges overlap: copy out before writing
        local_end = len(survivors)
        torch._foreach_copy_([leaf[:, :local_end] for leaf in leaves], moved)
    for name, end in (("global_end_index", start + count), ("local_end_index", local_end + count)):
        indices = [cache[name] for cache in caches]
        torch._foreach_zero_(indices)
        torch._foreach_add_(indices, end)
    return local_end, local_end + count


def _wired(config: WorldConfig, state: StateTree, frame_start: int) -> Iterator[_Window]:
    """Self-attention caches first, then those of the wired action modules."""
    frames, tokens = config.frames_per_block, config.tokens_per_frame
    for index in range(config.layers):
        cache = state["kv_cache"][index]
        yield _Window(f"kv_cache[{index}]", cache, frame_start * tokens, frames * tokens)
    for name in ("kv_cache_mouse", "kv_cache_keyboard"):
        for index in range(config.action_layers):
            yield _Window(f"{name}[{index}]", state[name][index], frame_start, frames)


def _check(window: _Window, global_end: int, local_end: int) -> None:
    if global_end != window.start:
        raise InvalidInput(
            f"{window.path}.global_end_index is {global_end}: a block at {window.start} cannot "
            "continue it",
            leaf=f"{window.path}.global_end_index",
        )
    written = min(global_end, int(window.cache["k"].shape[1]))
    if local_end != written:
        raise InvalidInput(
            f"{window.path}.local_end_index is {local_end}: {written} was written",
            leaf=f"{window.path}.local_end_index",
        )
