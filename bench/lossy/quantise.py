"""Quantise: tensors to eight bits and back, one scale for a tensor or for each channel. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_SCALE_BYTES = 4
_INT8_MAX = 127.0
_FP8 = torch.float8_e4m3fn
_FP8_MAX = float(torch.finfo(_FP8).max)


def int8(values: Tensor, shared: Sequence[int]) -> Tensor:
    """Rounded to -127 ... 127 times a scale, and restored in the tensor's dtype.

    `shared` are the dimensions along which one scale serves all elements.
    """
    scale = _scale(values, shared, _INT8_MAX)
    levels = (values.float() / scale).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8)
    return (levels.float() * scale).to(values.dtype)


def fp8(values: Tensor, shared: Sequence[int]) -> Tensor:
    """As `int8`, to the nearest float8_e4m3fn of values scaled to its range (448)."""
    scale = _scale(values, shared, _FP8_MAX)
    # Rounding may exceed the largest finite value by a hair, which this format turns into a NaN.
    scaled = (values.float() / scale).clamp(-_FP8_MAX, _FP8_MAX)
    return (scaled.to(_FP8).float() * scale).to(values.dtype)


def eight_bit_bytes(shape: Sequence[int], shared: Sequence[int]) -> int:
    """What a tensor takes in eight bits an element, its float32 scales included."""
    scales = math.prod(size for axis, size in enumerate(shape) if axis not in shared)
    return math.prod(shape) + _SCALE_BYTES * scales


def _scale(values: Tensor, shared: Sequence[int], largest: float) -> Tensor:
    """Float32, at least the smallest normal number: zeros divide to zeros."""
    peak = values.float().abs().amax(dim=tuple(shared), keepdim=True)
    return (peak / largest).clamp_min(torch.finfo(torch.float32).tiny)
