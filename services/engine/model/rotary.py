"""Rotary positions: frame, row and column angles of queries and keys (RoFormer, 2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from services.engine.model.config import WorldConfig

_BASE = 10_000.0


def _frequencies(pairs: int, device: torch.device) -> Tensor:
    return _BASE ** (-torch.arange(pairs, dtype=torch.float32, device=device) / max(pairs, 1))


def token_turns(config: WorldConfig, frame_start: int, device: torch.device) -> Tensor:
    """Turns of a block's tokens, (frames_per_block * tokens_per_frame, 1, head_dim / 2, 2).

    Frames count from the session's start: the global position decides, not the window's.
    """
    pairs = config.head_dim // 2
    spatial = pairs // 3
    rows, cols, frames = config.rows, config.cols, config.frames_per_block
    frame = torch.arange(frame_start, frame_start + frames, device=device).float()
    row = torch.arange(rows, device=device).float()
    col = torch.arange(cols, device=device).float()
    parts = (
        (frame[:, None] * _frequencies(pairs - 2 * spatial, device))[:, None, None, :],
        (row[:, None] * _frequencies(spatial, device))[None, :, None, :],
        (col[:, None] * _frequencies(spatial, device))[None, None, :, :],
    )
    grid = [part.expand(frames, rows, cols, part.shape[-1]) for part in parts]
    return phasors(torch.cat(grid, dim=-1).reshape(frames * rows * cols, pairs))


def frame_turns(config: WorldConfig, frame_start: int, device: torch.device) -> Tensor:
    """Turns of a block's frames for action attention, (frames, 1, action_head_dim / 2, 2)."""
    frame = torch.arange(frame_start, frame_start + config.frames_per_block, device=device)
    return phasors(frame.float()[:, None] * _frequencies(config.action_head_dim // 2, device))


def phasors(angles: Tensor) -> Tensor:
    """Cosine and sine of angles (positions, pairs) as (positions, 1, pairs, 2), for all heads."""
    return torch.stack((angles.cos(), angles.sin()), dim=-1)[:, None]


def rotate(values: Tensor, turns: Tensor) -> Tensor:
    """Rotate (..., positions, heads, channels), pairs of neighbouring channels, by `phasors`."""
    pairs = torch.view_as_complex(values.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.view_as_complex(turns)).flatten(-2)


def rotate_pairs(values: Tensor, turns: Tensor) -> Tensor:
    """The same without complex numbers, of which a compiler makes no kernel."""
    (real, imaginary), (cos, sin) = values.unflatten(-1, (-1, 2)).unbind(-1), turns.unbind(-1)
    turned = (real * cos - imaginary * sin, real * sin + imaginary * cos)
    return torch.stack(turned, dim=-1).flatten(-2)
