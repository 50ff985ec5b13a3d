"""Baseline: the digests of the state that a session began with, made anew for a moment.

A model writes the same first state for the same seed, wherever the session is by now. Where there
is no room for a second state, zero bytes stand in for it: caches begin as zeros.
"""

from __future__ import annotations

import asyncio
from typing import cast

import numpy as np
import psutil
import structlog
import torch

from services.engine.chores import Chores
from services.engine.device import EngineDevice
from services.engine.making import initialised
from services.engine.parts import Parts
from services.engine.segment_reading import read_segments
from services.engine.world import StateTree, WorldModel
from worldline.state.gf2 import Uint64s, crcs_of_zeros
from worldline.state.layout import Layout
from worldline.state.segments import segments_of
from worldline.state.tree import materialize

_log = structlog.get_logger(__name__)

#: A second state may take this share of what is free: the worlds that run here come first.
FREE_SHARE_MAX = 0.25


async def initial_crcs(
    chores: Chores, model: WorldModel, layout: Layout, seed: int, granule_bytes: int
) -> Uint64s | None:
    """CRC of every segment of a fresh session's state; None where there is no room for it."""
    if layout.extent_bytes > FREE_SHARE_MAX * _free_bytes(chores.device.torch_device):
        return None
    try:
        buffer = await chores.run(_made(chores.device, model, layout, seed))
    except (RuntimeError, MemoryError) as error:  # torch's words for memory that is gone by now
        _log.warning("inspect.no_initial_state", preset=model.preset, error=str(error))
        return None
    return await asyncio.to_thread(read_segments, layout, buffer, granule_bytes)


def zero_crcs(layout: Layout, granule_bytes: int) -> Uint64s:
    """CRC of every segment of a state that is all zero."""
    return crcs_of_zeros(np.diff(segments_of(layout, granule_bytes).bounds))


def _made(
    device: EngineDevice, model: WorldModel, layout: Layout, seed: int
) -> Parts[torch.Tensor]:
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8, device=device.torch_device)
    yield from initialised(model, cast(StateTree, materialize(layout, buffer)), seed)
    return buffer


def _free_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(free_bytes)
