"""Window: which positions of a rolling cache a block writes.

A cache holds `window_frames` latent frames along dimension 1. A block fills the free end; once
the window is full, the kept half is shifted to the front and the block is written behind it.
All passes of one block write the same positions.
"""

from __future__ import annotations

from typing import Any

from worldline.errors import InvalidInput

Cache = dict[str, Any]


def kept(local_end: int, capacity: int, count: int) -> range:
    """Positions of a window, as it lies now, that its next block of `count` reads.

    Every other position is overwritten before anything reads it: what has not been written yet,
    and in a full window the half that falls out (the paper's roll geometry, section 3.3).
    """
    return range(max(0, local_end + count - capacity), local_end)


def claim(cache: Cache, path: str, start: int, count: int) -> tuple[int, int]:
    """Make room for positions [start, start + count) of the session; returns the local range.

    The first pass of a block shifts and advances the indices, later passes find them advanced.

    Raises:
        InvalidInput: the cache's indices are not those of a session at `start`: the state was
            not written by this model up to this block. `leaf` names the index.
    """
    capacity = int(cache["k"].shape[1])
    global_end = int(cache["global_end_index"].item())
    local_end = int(cache["local_end_index"].item())
    if global_end not in (start, start + count):
        raise InvalidInput(
            f"{path}.global_end_index is {global_end}: a block at {start} cannot continue it",
            leaf=f"{path}.global_end_index",
        )
    if local_end != min(global_end, capacity):
        raise InvalidInput(
            f"{path}.local_end_index is {local_end}: {min(global_end, capacity)} was written",
            leaf=f"{path}.local_end_index",
        )
    if global_end == start + count:
        return local_end - count, local_end
    survivors = kept(local_end, capacity, count)
    if survivors.start > 0:
        for name in ("k", "v"):
            # The ranges may overlap: copy out before writing.
            moved = cache[name][:, survivors.start : survivors.stop].clone()
            cache[name][:, : len(survivors)] = moved
        local_end = len(survivors)
    cache["global_end_index"].fill_(start + count)
    cache["local_end_index"].fill_(local_end + count)
    return local_end, local_end + count
